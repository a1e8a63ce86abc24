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
const VERDICT = { allowed: ["✓", "allowed"], ask: ["?", "asks"], denied: ["✗", "denied"] };
const MOST_PARTS = 100;

/** @param {string} agent */
const byDefault = (agent) => (agent ? `${agent} says that it asks by default` : "Asks by default");

/** @type {(agent: string, rule: string) => unknown} */
const byRule = (agent, rule) => html`${agent ? `${agent} says that its rule` : "Rule"} <code>${exact.visible(rule) || "(no name)"}</code> asks`;

/** @param {{approval: Approval, agent: string}} props */
export const Reason = ({ approval: { rule = "", why = "", parts = [] }, agent }) => html`
  ${(rule || why) && html`
    <p class="reason">${rule === "default" ? byDefault(agent) : byRule(agent, rule)}${why && `: ${exact.visible(why)}`}</p>
  `}
  ${parts.length > 0 && html`
    <ul class="parts" aria-label="Parts of the command">${parts.slice(0, MOST_PARTS).map(({ words, verdict, rule: by }) => {
      const [mark, said] = VERDICT[verdict] ?? VERDICT.ask;
      return html`<li class=${verdict}><span class="verdict">${mark} ${said}${by && `${verdict === "ask" ? "," : ""} by ${exact.visible(by)}`}</span> <code>${markedLine(words)}</code></li>`;
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

/** @type {Record<string, [string, string]>} */
const NAMED = { paths: ["the path", "the paths"], command: ["the command", "the commands"] };
const KNOWN = ["name", "decide", "tools", "servers", "args", ...Object.keys(NAMED)];

/** @param {unknown} value */
const areTexts = (value) => value === undefined || (Array.isArray(value) && value.every((each) => typeof each === "string"));

/**
 * One as it is; several each in quotes, so that one cannot look like two.
 * @param {string[]} values
 */
const listed = (values) => (values.length === 1 ? values[0] : values.map((each) => JSON.stringify(each)).join(", "));

/** @param {[string, any]} argument */
const ofArgument = ([name, condition]) =>
  `${name} ${typeof condition === "string" ? condition : condition?.absent === true ? "not given" : JSON.stringify(condition)}`;

/**
 * What a rule allows, in the words of the terminal (mesh/display/remembered_rules.py).
 * @param {Record<string, any>} rule
 */
export function allowedBy(rule) {
  const { tools = [], servers = [], args } = rule;
  const isKnown = Object.keys(rule).every((key) => KNOWN.includes(key));
  const isAsSuggested = [tools, servers, rule.paths, rule.command].every(areTexts) && tools.length > 0;
  if (!isKnown || !isAsSuggested) return `allow what this rule covers: ${JSON.stringify(rule)}`;
  const what = `${listed(tools)}${servers.length ? ` on ${listed(servers)}` : ""}`;
  const bounds = Object.entries(NAMED)
    .filter(([key]) => rule[key]?.length)
    .map(([key, words]) => `${words[rule[key].length === 1 ? 0 : 1]} ${listed(rule[key])}`)
    .concat(Object.entries(args ?? {}).map(ofArgument));
  if (bounds.length === 0) return `allow every call of ${what}, whatever its arguments`;
  return `allow ${what} for ${bounds.join(" and ")}, whatever its other arguments`;
}

/** @typedef {{approval: Approval, isBusy: boolean, decide: (decision: Decision) => void, back: () => void}} Props */

/**
 * The rule that would be added, to edit before it is sent, and when it ends if it is added always.
 * @extends {Component<Props, {draft: string, end: string}>}
 */
export class Remembering extends Component {
  state = { draft: exact.shown(this.props.approval.suggested_rule), end: "" };

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
    const until = remember === "always" && this.state.end && new Date(this.state.end).toISOString();
    this.props.decide({ action: "approve", remember, ...(isEdited && { rule }), ...(until && { until }) });
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
      <p class="reason">${exact.visible(allowedBy(approval.suggested_rule ?? {}))}</p>
      <label class="editor">
        <span>The rule that is added for this agent, as JSON</span>
        <textarea class="code" spellcheck="false" rows=${Math.min(14, this.state.draft.split("\n").length + 1)} value=${this.state.draft}
          aria-invalid=${Boolean(problem)}
          onInput=${(/** @type {{target: HTMLTextAreaElement}} */ event) => this.setState({ draft: event.target.value })}></textarea>
      </label>
      ${scopes.includes("always") && html`
        <label class="editor">
          <span>If always, until when (empty: for good)</span>
          <input type="datetime-local" value=${this.state.end}
            onInput=${(/** @type {{target: HTMLInputElement}} */ event) => this.setState({ end: event.target.value })} />
        </label>
      `}
      <p class="problem" role="status">${problem}</p>
      <div class="answers">
        ${button("conversation", "Approve for this conversation", "primary")}
        ${button("always", "Approve always", "")}
        <button aria-disabled=${isBusy} onClick=${back}>Back</button>
      </div>
    `;
  }
}
