// @ts-check
// The card of an approval: who wants what, and the ways to decide. What may be decided, edited or answered in words
// is in the row of its kind.
import { descriptionOf, kindOf, remoteAgentOf } from "../approvals.js";
import * as exact from "../exact-json.js";
import { Component, html } from "../html.js";
import { messageOf } from "../api.js";
import { problemsOf } from "../schema.js";
import { AnswerBox } from "./answer-box.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";
import { Reason, Remembering, scopesOf } from "./policy.js";
import { Preview } from "./preview.js";

/** @import { Choice } from "../../approval-kinds.js" */
/** @import { Decision } from "../api.js" */
/** @import { DecisionState } from "../chat.js" */
/** @import { Approval, Preview as PreviewData } from "../turn.js" */

/**
 * @typedef {object} Props
 * @property {Approval} approval
 * @property {DecisionState} [state]
 * @property {(uuid: string, decision: Decision) => void} decide
 * @property {(uuid: string, offset: number) => Promise<PreviewData>} more the rest of a preview
 * @property {boolean} hasToken
 * @property {() => void} identify
 * @property {string} where who asks, and on whose behalf
 * @property {string} position which of several approvals, or ""
 */

/** @typedef {{mode: "look" | "edit" | "say" | "reject" | "remember", draft: string, reason: string}} State */
/** @typedef {{target: HTMLInputElement | HTMLTextAreaElement}} Typed */

const SKIPPED = "the person skipped the question";

/**
 * What a person may change: all arguments, or the answer.
 * @param {Approval} approval
 */
const editedPart = (approval) => (kindOf(approval).editsOutput ? approval.tool_args?.output : (approval.tool_args ?? {}));

/**
 * Whether it is an answer in words, not in JSON.
 * @param {Approval} approval
 */
const isPlainText = (approval) => kindOf(approval).editsOutput && !approval.output_schema && typeof editedPart(approval) === "string";

/** @extends {Component<Props, State>} */
export class ApprovalCard extends Component {
  /** @type {State} */
  state = { mode: "look", draft: "", reason: "" };
  /** @type {HTMLElement | null} */
  #card = null;

  // Moves the focus to the next approval, or to the message box, for a person who decided with the keyboard.
  componentWillUnmount() {
    if (!this.#card?.contains(document.activeElement)) return;
    const others = [...document.querySelectorAll(".approval")].filter((card) => card !== this.#card);
    /** @type {HTMLElement | null | undefined} */
    const next = others[0]?.querySelector("textarea, button.primary");
    (next ?? document.getElementById("message"))?.focus();
  }

  #edit = () => {
    if (this.props.state?.busy) return;
    const { approval } = this.props;
    const value = editedPart(approval);
    const draft = isPlainText(approval) ? String(value) : exact.shown(value);
    this.setState({ mode: "edit", draft }, () => this.#focus("textarea"));
  };

  #look = () => this.setState({ mode: "look" }, () => this.#focus("button.primary"));
  #say = () => this.setState({ mode: "say" }, () => this.#focus("textarea"));
  #remember = () => this.setState({ mode: "remember" }, () => this.#focus(".editor textarea"));
  #ask = () => this.setState({ mode: "reject" }, () => this.#focus("input"));

  /** @param {string} selector */
  #focus(selector) {
    /** @type {HTMLElement | null | undefined} */
    const element = this.#card?.querySelector(selector);
    element?.focus();
  }

  /** @param {KeyboardEvent} event */
  #escape = (event) => {
    if (event.key !== "Escape" || this.state.mode === "look") return;
    event.stopPropagation();
    this.#look();
  };

  /**
   * Buttons of a card that was answered do nothing more; they keep the focus until the card goes.
   * @param {Decision} decision
   */
  #decide(decision) {
    if (!this.props.state?.busy) this.props.decide(this.props.approval.uuid, decision);
  }

  #approve = () => {
    const { args, problem } = this.#edited();
    if (problem) return;
    const isEdited = this.state.mode === "edit" && JSON.stringify(args) !== JSON.stringify(this.props.approval.tool_args ?? {});
    this.#decide({ action: "approve", ...(isEdited && { edited_args: args }) });
  };

  #reject = () => {
    const reason = this.state.reason.trim();
    this.#decide({ action: "reject", ...(reason && { reason }) });
  };

  /** @returns {{args?: object, problem: string}} */
  #edited() {
    const { approval } = this.props;
    if (this.state.mode !== "edit") return { problem: "" };
    if (isPlainText(approval)) return { args: { output: this.state.draft }, problem: "" };
    try {
      const value = exact.parse(this.state.draft);
      if (kindOf(approval).editsOutput) return { args: { output: value }, problem: problemsOf(approval.output_schema, value, "output").join(" ") };
      return exact.isObject(value) ? { args: value, problem: "" } : { problem: "Arguments are a JSON object: { … }" };
    } catch (error) {
      return { problem: `This is not JSON: ${messageOf(error)}` };
    }
  }

  render() {
    const { approval, state, position } = this.props;
    const kind = kindOf(approval);
    const isBusy = state?.busy ?? false;
    return html`
      <section class="approval" aria-label=${`Approval: ${exact.visible(approval.tool_name)}`} onKeyDown=${this.#escape}
        ref=${(/** @type {HTMLElement | null} */ element) => (this.#card = element)} aria-busy=${isBusy}>
        <header>
          <${Icon} name="hand" />
          <h3>${kind.title}</h3>
          <span class="place">${position}</span>
        </header>
        ${this.#what()}
        ${kind.hint && html`<p class="hint">${kind.hint}</p>`}
        <p class=${kind.isQuestion ? "question" : "description"}>${descriptionOf(approval)}</p>
        <${Reason} approval=${approval} agent=${remoteAgentOf(approval)} />
        ${approval.preview && html`
          <${Preview} preview=${approval.preview} agent=${remoteAgentOf(approval)}
            more=${(/** @type {number} */ offset) => this.props.more(approval.uuid, offset)} />
        `}
        ${kind.showsArguments && this.#arguments()}
        ${approval.expires_at && html`<p class="hint">Counts as rejected after ${new Date(approval.expires_at).toLocaleString()}.</p>`}
        ${state?.problem && html`<p class="problem" role="alert">${state.problem}</p>`}
        ${this.#answers(isBusy)}
      </section>
    `;
  }

  // Who wants what, and where.
  #what() {
    const { approval, where } = this.props;
    const kind = kindOf(approval);
    const agent = remoteAgentOf(approval);
    const tool = exact.visible(approval.tool_name);
    const place = html`<span>in ${exact.visible(where)}</span>`;
    if (kind.takesText) return html`<p class="what"><strong>${agent || "The agent"}</strong> asks ${place}</p>`;
    if (kind.editsOutput) return html`<p class="what"><span>by </span><strong>${agent || exact.visible(where)}</strong></p>`;
    if (kind.needsToken) return html`<p class="what"><strong>${agent || tool}</strong> wants to know who asks ${place}</p>`;
    return html`<p class="what"><code>${tool}</code> ${place}${agent && html`<span>, asked by ${agent}</span>`}</p>`;
  }

  /** @param {boolean} isBusy */
  #answers(isBusy) {
    const kind = kindOf(this.props.approval);
    const decide = (/** @type {Decision} */ decision) => this.#decide(decision);
    if (this.state.mode === "reject") return this.#rejecting(isBusy);
    if (this.state.mode === "remember") return html`<${Remembering} approval=${this.props.approval} back=${this.#look} ...${{ isBusy, decide }} />`;
    if (this.state.mode === "say") return html`<${AnswerBox} ...${{ isBusy, decide }} other=${{ words: "Back", act: this.#look }} />`;
    if (kind.isQuestion) {
      const skip = { words: "Skip", act: () => decide({ action: "reject", reason: SKIPPED }) };
      return html`<${AnswerBox} ...${{ isBusy, decide }} other=${skip} />`;
    }
    return html`
      ${kind.needsToken && this.#tokenHint()}
      <div class="answers">${kind.choices.map((choice) => this.#button(choice, isBusy))}</div>
    `;
  }

  #arguments() {
    const { approval } = this.props;
    const { editsOutput, editsArguments } = kindOf(approval);
    const what = editsOutput ? "Answer" : "Arguments";
    if (this.state.mode === "edit") {
      const { problem } = this.#edited();
      return html`
        <label class="editor">
          <span>${what}${isPlainText(approval) ? "" : ", as JSON"}</span>
          <textarea class="code" spellcheck="false" rows=${Math.min(16, this.state.draft.split("\n").length + 1)}
            value=${this.state.draft} aria-invalid=${Boolean(problem)}
            onInput=${(/** @type {Typed} */ event) => this.setState({ draft: event.target.value })}></textarea>
        </label>
        <p class="problem" role="status">${problem}</p>
        ${approval.output_schema && html`
          <details class="schema"><summary>What it has to fit</summary><${LongText} text=${exact.shown(approval.output_schema)} label="Schema" /></details>
        `}
      `;
    }
    const value = editedPart(approval);
    const written = html`<${LongText} text=${isPlainText(approval) ? exact.visible(value) : exact.shown(value)} label=${what} />`;
    const edit = editsArguments && html`<button class="link" onClick=${this.#edit}>Edit</button>`;
    if (approval.preview) {
      // What they come to is shown above.
      return html`<div class="arguments folded"><details class="schema"><summary>${what}</summary>${written}</details>${edit}</div>`;
    }
    return html`<div class="arguments"><div class="arguments-head"><h4>${what}</h4>${edit}</div>${written}</div>`;
  }

  /** @param {boolean} isBusy */
  #rejecting(isBusy) {
    const { rejectEndsTurn } = kindOf(this.props.approval);
    const hint = rejectEndsTurn ? "Why? The agent is told, and goes on (optional)" : "Why? (optional)";
    const words = this.state.reason.trim() ? "Reject with reason" : rejectEndsTurn ? "Reject and stop" : "Reject";
    return html`
      <div class="answers reject">
        <label class="grow"><span class="hidden">Reason</span>
          <input type="text" maxlength="4000" placeholder=${hint} value=${this.state.reason}
            onInput=${(/** @type {Typed} */ event) => this.setState({ reason: event.target.value })}
            onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && !event.isComposing && this.#reject()} />
        </label>
        <button class="danger" aria-disabled=${isBusy} onClick=${this.#reject}>${words}</button>
        <button aria-disabled=${isBusy} onClick=${this.#look}>Back</button>
      </div>
    `;
  }

  // The token is that of the page. It is sent with the decision, and the mesh passes it on.
  #tokenHint() {
    const { hasToken } = this.props;
    return html`<p class="hint">${hasToken ? "Your access token is sent along, and passed on to that agent." : "Set an access token first: it is sent along, and passed on to that agent."}</p>`;
  }

  /**
   * The button of a choice.
   * @param {Choice} choice
   * @param {boolean} isBusy
   */
  #button(choice, isBusy) {
    switch (choice) {
      case "approve":
        return kindOf(this.props.approval).needsToken ? this.#tokenButtons(isBusy) : this.#approveButton(isBusy);
      case "reject":
        if (this.state.mode === "edit") return html`<button aria-disabled=${isBusy} onClick=${this.#look}>Discard changes</button>`;
        return html`<button aria-disabled=${isBusy} onClick=${this.#ask}><${Icon} name="cross" />Reject…</button>`;
      case "retry":
        return html`<button class="primary" aria-disabled=${isBusy} onClick=${() => this.#decide({ action: "retry" })}>Run it again</button>`;
      case "skip":
        return html`<button aria-disabled=${isBusy} onClick=${() => this.#decide({ action: "skip" })}>Skip it</button>`;
      case "answer":
        return html`<button aria-disabled=${isBusy} onClick=${this.#say}>Answer in words…</button>`;
    }
  }

  #approving = () => (kindOf(this.props.approval).editsOutput ? "Approve this answer" : "Approve with these");

  /** @param {boolean} isBusy */
  #approveButton(isBusy) {
    return html`
      <button class="primary" aria-disabled=${isBusy} disabled=${Boolean(this.#edited().problem)} onClick=${this.#approve}>
        <${Icon} name="check" />${this.state.mode === "edit" ? this.#approving() : "Approve"}
      </button>
      ${this.state.mode === "look" && scopesOf(this.props.approval).length > 0 && html`
        <button aria-disabled=${isBusy} onClick=${this.#remember}>Approve and remember…</button>
      `}
    `;
  }

  /** @param {boolean} isBusy */
  #tokenButtons(isBusy) {
    const { hasToken, identify } = this.props;
    return html`
      ${!hasToken && html`<button onClick=${identify}><${Icon} name="person" />Set token…</button>`}
      <button class="primary" aria-disabled=${isBusy} disabled=${!hasToken} onClick=${this.#approve}>Go on</button>
    `;
  }
}
