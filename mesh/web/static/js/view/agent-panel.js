// @ts-check
// The agent beside the conversation: its tree, with the status of each node in the turn, and its tools.
import { html } from "../html.js";
import { visible } from "../exact-json.js";
import { statuses } from "../tree-status.js";
import { Icon } from "./icons.js";

/** @import { ToolInfo } from "../chat.js" */
/** @import { NodeStatus, TreeNode } from "../tree-status.js" */
/** @import { Turn } from "../turn.js" */

/** @type {Record<string, string>} */
const STATUS = { running: "running", waiting: "waits for you", completed: "done", failed: "failed", stopped: "stopped" };

/**
 * @param {{tree: TreeNode | null, tools: ToolInfo[], problem: string, turn?: Turn, isOpen: boolean, close: () => void}} props
 */
export function AgentPanel({ tree, tools, problem, turn, isOpen, close }) {
  return html`
    <aside class=${`agent ${isOpen ? "open" : ""}`} id="agent" aria-label="Agent">
      <header>
        <h2>Agent</h2>
        <button class="icon-button only-medium" onClick=${close} aria-label="Close the agent's panel"><${Icon} name="close" /></button>
      </header>
      ${problem && html`<p class="problem">${problem}</p>`}
      ${tree && html`<ul class="tree" role="tree" aria-label="Tree of agents"><${Node} node=${tree} found=${statuses(turn)} /></ul>`}
      ${tools.length > 0 && html`
        <h2>Tools</h2>
        <ul class="tools">${tools.map((tool) => html`<${ToolLine} key=${`${tool.name} ${tool.nodes}`} tool=${tool} />`)}</ul>
      `}
    </aside>
  `;
}

/** @param {{node: TreeNode, found: Map<string, NodeStatus>}} props */
function Node({ node, found }) {
  const { status, iteration } = found.get(node.path) ?? { status: "idle", iteration: 0 };
  const agents = node.agents ?? [];
  return html`
    <li role="treeitem" aria-label=${`${visible(node.name)}, ${STATUS[status] ?? "not begun"}`} class=${status}>
      <div class="tree-line" title=${visible(node.description ?? "")}>
        <span class=${`dot ${status}`}></span>
        <span class="tree-name">${visible(node.name)}</span>
        ${iteration > 0 && html`<span class="iteration">iteration ${iteration}</span>`}
        <span class="tree-kind">${node.type}</span>
      </div>
      ${agents.length > 0 && html`
        <ul role="group">${agents.map((child) => html`<${Node} key=${child.path} node=${child} found=${found} />`)}</ul>
      `}
    </li>
  `;
}

/** @type {Record<string, string>} */
const FROM = { a2a: "agent", built_in: "built in" };

/** @param {{tool: ToolInfo}} props */
const ToolLine = ({ tool }) => html`
  <li title=${visible(tool.description ?? "").slice(0, 600)}>
    <code>${visible(tool.name)}</code>
    ${FROM[tool.source ?? ""] && html`<span class="tree-kind">${FROM[tool.source ?? ""]}</span>`}
    ${tool.destructiveHint && html`<span class="badge waiting_approval">asks</span>`}
  </li>
`;
