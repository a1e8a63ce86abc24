// @ts-check
// A tool call: one line, with arguments and result folded under it.
import { descriptionOf, kindOf, remoteAgentOf } from "../approvals.js";
import * as exact from "../exact-json.js";
import { html } from "../html.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";
import { DECISION, duration, foundBy, limitName, percent, PHASE, progressOf } from "./words.js";

/** @import { Approval, Phase, ToolItem } from "../turn.js" */

/** @param {{item: ToolItem, decided: Approval[]}} props */
export const Tool = ({ item, decided }) => html`
  <${Call} ...${{ item, decided }} phase=${item.phase} name=${item.name} gist=${gist(item)}>
    <${Arguments} item=${item} />
    ${item.result !== undefined && html`<${Result} item=${item} />`}
  <//>
`;

/**
 * The line of a call. What is below it unfolds.
 * @typedef {object} CallProps
 * @property {ToolItem} item
 * @property {Phase} phase
 * @property {Approval[]} decided about the call
 * @property {boolean} [isAgent]
 * @property {string} name
 * @property {string} gist what it is to do, in a few words
 * @property {boolean} [isOpen]
 * @property {unknown} [children]
 */

/** @param {CallProps} props */
export function Call({ item, phase, decided, isAgent, name, gist, isOpen, children }) {
  return html`
    <details class=${`tool ${isAgent ? "agent-call" : ""} ${phase}`} open=${isOpen}>
      <summary>
        <span class=${`dot ${phase}`}></span>
        <${Icon} name=${isAgent ? "agent" : "tool"} />
        <code class="tool-name">${exact.visible(name)}</code>
        <span class="gist">${exact.visible(gist).slice(0, 200)}</span>
        <span class="phase">${item.progress ? progressOf(item.progress) : PHASE[phase]}${item.forced && ` at the limit of ${limitName(item.forced)}`}${item.ms > 0 ? `, ${duration(item.ms)}` : ""}</span>
        <${Icon} name="chevron" />
        ${item.progress && item.progress.part > 0 && html`<${Progress} name=${name} part=${item.progress.part} />`}
      </summary>
      <div class="fold">
        ${decided.map((one) => html`<${Decided} approval=${one} key=${one.uuid} />`)}
        ${item.found && html`<p class="decision">${foundBy(item.found)}</p>`}
        ${children}
      </div>
    </details>
  `;
}

/** @param {{name: string, part: number}} props */
const Progress = ({ name, part }) => html`
  <i class="progress" role="progressbar" aria-label=${`Progress of ${exact.visible(name)}`} aria-valuenow=${percent(part)} style=${{ width: `${percent(part)}%` }}></i>
`;

/** @param {{item: ToolItem}} props */
export const Arguments = ({ item }) => html`
  <h4>Arguments${item.edited ? " (edited)" : ""}</h4>
  <${LongText} text=${written(item)} label="Arguments" />
`;

/** @param {{item: ToolItem}} props */
export const Result = ({ item }) => html`
  <h4>${item.phase === "failed" ? "Error" : "Result"}</h4>
  <${LongText} text=${readable(item.result ?? "")} label="Result" />
`;

/** @param {Approval} approval */
const scopeOf = ({ remember, until }) =>
  until ? `until ${exact.visible(until)}` : remember === "always" ? "always" : "for this conversation";

/** @param {{approval: Approval, about?: string}} props */
export const Decided = ({ approval, about }) => html`
  <p class="decision">
    ${about && html`<span>${about}: </span>`}
    ${remoteAgentOf(approval) && html`<span>${remoteAgentOf(approval)} asked: ${descriptionOf(approval).slice(0, 300)} </span>`}
    <strong>${approval.decision === "approve" && kindOf(approval).needsToken ? "Token sent" : DECISION[approval.decision]}</strong>
    ${approval.by && ` by ${exact.visible(approval.by)}`}
    ${approval.edited_args && `, with ${kindOf(approval).editsOutput ? "another answer" : "edited arguments"}`}
    ${approval.grant && `, remembered ${scopeOf(approval)}: ${exact.visible(JSON.stringify(approval.grant)).slice(0, 1_000)}`}
    ${(approval.answer || approval.reason) && html`: <q>${exact.visible(approval.answer || approval.reason)}</q>`}
  </p>
`;

/** @param {ToolItem} item */
const written = (item) => (item.args === undefined ? exact.visible(item.draft) : exact.shown(item.args));

/**
 * The arguments in a few words, for the line.
 * @param {ToolItem} item
 */
function gist(item) {
  if (!exact.isObject(item.args)) return "";
  return Object.entries(item.args).slice(0, 4)
    .map(([key, value]) => `${exact.visible(key).slice(0, 40)}: ${exact.visible(JSON.stringify(value) ?? "").slice(0, 60)}`)
    .join("  ");
}

/**
 * JSON is laid out; anything else is as it came.
 * @param {string} text
 */
function readable(text) {
  if (!/^\s*[{[]/.test(text) || text.length > 200_000) return text;
  try {
    return exact.shown(exact.parse(text));
  } catch {
    return text;
  }
}
