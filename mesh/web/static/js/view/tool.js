// @ts-check
// A tool call: one line, with arguments and result folded under it.
import { descriptionOf, kindOf, remoteAgentOf } from "../approvals.js";
import * as exact from "../exact-json.js";
import { html } from "../html.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";
import { DECISION, duration, PHASE } from "./words.js";

/** @import { Approval, ToolItem } from "../turn.js" */

/** @param {{item: ToolItem, approvals: Approval[]}} props */
export function Tool({ item, approvals }) {
  const decided = approvals.filter((one) => one.step === item.step && one.decision);
  return html`
    <details class=${`tool ${item.phase}`}>
      <summary>
        <span class=${`dot ${item.phase}`}></span>
        <${Icon} name="tool" />
        <code class="tool-name">${exact.visible(item.name)}</code>
        <span class="gist">${gist(item)}</span>
        <span class="phase">${PHASE[item.phase]}${item.ms > 0 ? `, ${duration(item.ms)}` : ""}</span>
        <${Icon} name="chevron" />
      </summary>
      <div class="fold">
        ${decided.map((one) => html`<${Decision} approval=${one} key=${one.uuid} />`)}
        <h4>Arguments${item.edited ? " (edited)" : ""}</h4>
        <${LongText} text=${written(item)} label="Arguments" />
        ${item.result !== undefined && html`
          <h4>${item.phase === "failed" ? "Error" : "Result"}</h4>
          <${LongText} text=${readable(item.result)} label="Result" />
        `}
      </div>
    </details>
  `;
}

/** @param {{approval: Approval}} props */
const Decision = ({ approval }) => html`
  <p class="decision">
    ${remoteAgentOf(approval) && html`<span>${remoteAgentOf(approval)} asked: ${descriptionOf(approval).slice(0, 300)} </span>`}
    <strong>${approval.decision === "approve" && kindOf(approval).needsToken ? "Token sent" : DECISION[approval.decision]}</strong>
    ${approval.by && ` by ${exact.visible(approval.by)}`}
    ${approval.edited_args && ", with edited arguments"}
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
