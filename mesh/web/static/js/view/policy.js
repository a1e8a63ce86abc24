// @ts-check
// What a policy says about a call: the rule that asks, each part of a command, and the rule that a decision adds.
import * as exact from "../exact-json.js";
import { messageOf } from "../api.js";
import { Component, html } from "../html.js";
import { markedLine } from "./marked.js";

/** @import { Decision } from "../api.js" */
/** @import { Approval } from "../turn.js" */

/** @typedef {"conversation" | "always"} Scope */

/** @type {Record<string, [string, string]>} */
const VERDICT = { allowed: ["✓", "allowed"], ask: ["?", "has to be asked"], denied: ["✗", "denied"] };
const MOST_PARTS = 100;

/** @param {{approval: Approval, agent: string}} props */
export const Reason = ({ approval: { rule = "", why = "", parts = [] }, agent }) => html`
  ${(rule || why) && html`
    <p class="reason">${agent ? `${agent} says that its rule` : "Rule"} <code>${exact.visible(rule) || "(no name)"}</code> asks${why && `: ${exact.visible(why)}`}</p>
  `}
  ${parts.length > 0 && html`
    <ul class="parts" aria-label="Parts of the command">${parts.slice(0, MOST_PARTS).map(({ words, verdict, rule: by }) => {
      const [mark, said] = VERDICT[verdict] ?? VERDICT.ask;
      return html`<li class=${verdict}><span class="verdict">${mark} ${said}${by && ` by ${exact.visible(by)}`}</span> <code>${markedLine(words)}</code></li>`;
    })}</ul>
  `}
  ${parts.length > MOST_PARTS && html`<p class="hint">${parts.length - MOST_PARTS} more commands.</p>`}
`;

/**
 * For how long a decision about an approval may be remembered.
 * @param {Approval} approval
 * @returns {Scope[]}
 */
export function scopesOf({ remember = "none", suggested_rule: rule }) {
  if (!rule || remember === "none") return [];
  return remember === "always" ? ["conversation", "always"] : ["conversation"];
}

/** @typedef {{approval: Approval, isBusy: boolean, decide: (decision: Decision) => void, back: () => void}} Props */

/**
 * The rule that would be added, to edit before it is sent.
 * @extends {Component<Props, {draft: string}>}
 */
export class Remembering extends Component {
  state = { draft: exact.shown(this.props.approval.suggested_rule) };

  /** @returns {{rule?: object, problem: string}} */
  #rule() {
    try {
      const rule = exact.parse(this.state.draft);
      return exact.isObject(rule) ? { rule, problem: "" } : { problem: "A rule is a JSON object: { … }" };
    } catch (error) {
      return { problem: `This is not JSON: ${messageOf(error)}` };
    }
  }

  /** @param {Scope} remember */
  #approve(remember) {
    const { rule, problem } = this.#rule();
    if (problem || !rule) return;
    const isEdited = JSON.stringify(rule) !== JSON.stringify(this.props.approval.suggested_rule);
    this.props.decide({ action: "approve", remember, ...(isEdited && { rule }) });
  }

  render() {
    const { approval, isBusy, back } = this.props;
    const { problem } = this.#rule();
    const scopes = scopesOf(approval);
    const button = (/** @type {Scope} */ scope, /** @type {string} */ words, /** @type {string} */ kind) =>
      scopes.includes(scope) && html`
        <button class=${kind} aria-disabled=${isBusy} disabled=${Boolean(problem)} onClick=${() => this.#approve(scope)}>${words}</button>
      `;
    return html`
      <label class="editor">
        <span>The rule that is added for this agent, as JSON</span>
        <textarea class="code" spellcheck="false" rows=${Math.min(14, this.state.draft.split("\n").length + 1)} value=${this.state.draft}
          aria-invalid=${Boolean(problem)}
          onInput=${(/** @type {{target: HTMLTextAreaElement}} */ event) => this.setState({ draft: event.target.value })}></textarea>
      </label>
      <p class="problem" role="status">${problem}</p>
      <div class="answers">
        ${button("conversation", "Approve for this conversation", "primary")}
        ${button("always", "Approve always", "")}
        <button aria-disabled=${isBusy} onClick=${back}>Back</button>
      </div>
    `;
  }
}
