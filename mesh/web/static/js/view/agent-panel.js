// @ts-check
// The agent beside the conversation: its tree, with the status of each node in the turn, its limits, and its tools.
import { html } from "../html.js";
import { visible } from "../exact-json.js";
import { countsOf, isAtWork, linesOf } from "../tree-status.js";
import { Icon } from "./icons.js";
import { Limits } from "./limits.js";
import { counted, RUN } from "./words.js";

/** @import { ToolInfo } from "../chat.js" */
/** @import { Line, TreeNode } from "../tree-status.js" */
/** @import { Turn } from "../turn.js" */

/**
 * @param {{tree: TreeNode | null, calledTrees: TreeNode[], names: Record<string, string>, tools: ToolInfo[], problem: string, turn?: Turn, isOpen: boolean, close: () => void}} props
 */
export function AgentPanel({ tree, calledTrees, names, tools, problem, turn, isOpen, close }) {
  return html`
    <aside class=${`agent ${isOpen ? "open" : ""}`} id="agent" aria-label="Agent">
      <header>
        <h2>Agent</h2>
        <button class="icon-button only-medium" onClick=${close} aria-label="Close the agent's panel"><${Icon} name="close" /></button>
      </header>
      ${problem && html`<p class="problem">${problem}</p>`}
      ${tree && html`<ul class="tree" role="tree" aria-label="Tree of agents"><${TreeLine} line=${linesOf(tree, calledTrees, turn)} /></ul>`}
      <${Limits} ...${{ turn, names }} />
      ${tools.length > 0 && html`
        <h2>Tools</h2>
        <ul class="tools">${tools.map((tool) => html`<${ToolLine} key=${`${tool.name} ${tool.nodes}`} tool=${tool} />`)}</ul>
      `}
    </aside>
  `;
}

/** @param {{line: Line}} props */
function TreeLine({ line }) {
  const { name, type, description, status, iteration, started, below } = line;
  const task = started ? counted(countsOf(started, isAtWork(status))) : line.task;
  return html`
    <li role="treeitem" aria-label=${`${visible(name)}, ${RUN[status] ?? "not begun"}`} class=${status}>
      <div class="tree-line" title=${visible(task || description)}>
        <span class=${`dot ${status}`}></span>
        <span class="tree-name">${visible(name)}</span>
        ${iteration > 0 && html`<span class="iteration">iteration ${iteration}</span>`}
        ${task ? html`<span class="tree-task">${visible(task).slice(0, 200)}</span>` : html`<span class="tree-kind">${type}</span>`}
      </div>
      ${below.length > 0 && html`<ul role="group">${below.map((one) => html`<${TreeLine} key=${one.key} line=${one} />`)}</ul>`}
    </li>
  `;
}

/** @type {Record<string, string>} */
const FROM = { a2a: "agent", agent: "agent", built_in: "built in" };

/** @param {{tool: ToolInfo}} props */
const ToolLine = ({ tool }) => html`
  <li title=${visible(tool.description ?? "").slice(0, 600)}>
    <code>${visible(tool.name)}</code>
    ${FROM[tool.source ?? ""] && html`<span class="tree-kind">${FROM[tool.source ?? ""]}</span>`}
    ${tool.destructiveHint && html`<span class="badge waiting_approval">asks</span>`}
  </li>
`;
