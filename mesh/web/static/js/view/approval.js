// What waits for a person: a call that wants to run, a question, a wish for a token; and the ways to decide.
import { canEdit, described, isCall, isInWords, peerOf } from "../asked.js";
import * as exact from "../exact-json.js";
import { Component, html } from "../html.js";
import { Answer } from "./answer.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";

const TITLE = {
  tool_call: "Approval needed",
  unknown_outcome: "Nobody knows whether this ran",
  question: "A question for you",
  auth_required: "An access token is needed",
};
const SKIPPED = "the person skipped the question";

export class Approval extends Component {
  state = { mode: "look", draft: "", reason: "" };
  #card = null;

  // Who just answered with the keyboard goes on from the next question, or from the message box.
  componentWillUnmount() {
    if (!this.#card?.contains(document.activeElement)) return;
    const others = [...document.querySelectorAll(".approval")].filter((card) => card !== this.#card);
    (others[0]?.querySelector("textarea, button.primary") ?? document.getElementById("message"))?.focus();
  }

  #edit = () => {
    if (this.props.state?.busy) return;
    this.setState({ mode: "edit", draft: exact.shown(this.props.approval.tool_args ?? {}) }, () => this.#focus("textarea"));
  };

  #look = () => this.setState({ mode: "look" }, () => this.#focus("button.primary"));
  #say = () => this.setState({ mode: "say" }, () => this.#focus("textarea"));
  #ask = () => this.setState({ mode: "reject" }, () => this.#focus("input"));
  #focus = (what) => this.#card?.querySelector(what)?.focus();

  #escape = (event) => {
    if (event.key !== "Escape" || this.state.mode === "look") return;
    event.stopPropagation();
    this.#look();
  };

  // Buttons of a card that was answered do nothing more; they keep the focus until the card goes.
  #decide(decision) {
    if (!this.props.state?.busy) this.props.decide(this.props.approval.uuid, decision);
  }

  #approve = () => {
    const { approval } = this.props;
    const { args, problem } = this.#edited();
    if (problem) return;
    const isEdited = this.state.mode === "edit" && JSON.stringify(args) !== JSON.stringify(approval.tool_args ?? {});
    this.#decide({ approved: true, ...(isEdited && { edited_args: args }) });
  };

  #reject = () => {
    const reason = this.state.reason.trim();
    this.#decide({ approved: false, ...(reason && { reason }) });
  };

  #edited() {
    if (this.state.mode !== "edit") return { problem: "" };
    try {
      const args = exact.parse(this.state.draft);
      return exact.isObject(args) ? { args, problem: "" } : { problem: "Arguments are a JSON object: { … }" };
    } catch (error) {
      return { problem: `This is not JSON: ${error.message}` };
    }
  }

  render({ approval, state, position }) {
    const isBusy = state?.busy ?? false;
    return html`
      <section class="approval" aria-label=${`Approval: ${exact.visible(approval.tool_name)}`} onKeyDown=${this.#escape}
        ref=${(element) => (this.#card = element)} aria-busy=${isBusy}>
        <header>
          <${Icon} name="hand" />
          <h3>${TITLE[approval.kind]}</h3>
          <span class="place">${position}</span>
        </header>
        ${this.#what()}
        ${approval.kind === "unknown_outcome" && html`<p class="hint">It was begun, and nobody saw its end. Look at the real thing, then decide.</p>`}
        <p class=${approval.kind === "question" ? "question" : "description"}>${described(approval)}</p>
        ${(isCall(approval) || approval.kind === "unknown_outcome") && this.#arguments()}
        ${approval.expires_at && html`<p class="hint">Counts as rejected after ${new Date(approval.expires_at).toLocaleString()}.</p>`}
        ${state?.problem && html`<p class="problem" role="alert">${state.problem}</p>`}
        ${this.#answers(isBusy)}
      </section>
    `;
  }

  // Who wants what, and where.
  #what() {
    const { approval, where } = this.props;
    const peer = peerOf(approval);
    const place = html`<span>in ${exact.visible(where)}</span>`;
    if (approval.kind === "question" || isInWords(approval)) return html`<p class="what"><strong>${peer || "The agent"}</strong> asks ${place}</p>`;
    if (approval.kind === "auth_required") return html`<p class="what"><strong>${peer || exact.visible(approval.tool_name)}</strong> wants to know who asks ${place}</p>`;
    return html`<p class="what"><code>${exact.visible(approval.tool_name)}</code> ${place}${peer && html`<span>, asked by ${peer}</span>`}</p>`;
  }

  #answers(isBusy) {
    const { approval } = this.props;
    const decide = (decision) => this.#decide(decision);
    if (this.state.mode === "reject") return this.#rejecting(isBusy);
    if (this.state.mode === "say") return html`<${Answer} ...${{ isBusy, decide }} other=${{ words: "Back", act: this.#look }} />`;
    if (approval.kind === "unknown_outcome") return this.#unknown(isBusy);
    if (approval.kind === "auth_required") return this.#token(isBusy);
    if (approval.kind !== "question") return this.#known(isBusy);
    const skip = { words: "Skip", act: () => decide({ approved: false, reason: SKIPPED }) };
    return html`<${Answer} ...${{ isBusy, decide }} other=${skip} />`;
  }

  #arguments() {
    if (this.state.mode === "edit") {
      const { problem } = this.#edited();
      return html`
        <label class="editor">
          <span>Arguments, as JSON</span>
          <textarea class="code" spellcheck="false" rows=${Math.min(16, this.state.draft.split("\n").length + 1)}
            value=${this.state.draft} aria-invalid=${Boolean(problem)}
            onInput=${(event) => this.setState({ draft: event.target.value })}></textarea>
        </label>
        <p class="problem" role="status">${problem}</p>
      `;
    }
    return html`
      <div class="arguments">
        <div class="arguments-head"><h4>Arguments</h4>
          ${canEdit(this.props.approval) && html`<button class="link" onClick=${this.#edit}>Edit</button>`}
        </div>
        <${LongText} text=${exact.shown(this.props.approval.tool_args ?? {})} label="Arguments" />
      </div>
    `;
  }

  #rejecting(isBusy) {
    return html`
      <div class="answers reject">
        <label class="grow"><span class="hidden">Reason</span>
          <input type="text" maxlength="4000" placeholder="Why? The agent is told, and goes on (optional)" value=${this.state.reason}
            onInput=${(event) => this.setState({ reason: event.target.value })}
            onKeyDown=${(event) => event.key === "Enter" && !event.isComposing && this.#reject()} />
        </label>
        <button class="danger" aria-disabled=${isBusy} onClick=${this.#reject}>${this.state.reason.trim() ? "Reject with reason" : "Reject and stop"}</button>
        <button aria-disabled=${isBusy} onClick=${this.#look}>Back</button>
      </div>
    `;
  }

  #known(isBusy) {
    const { mode } = this.state;
    return html`
      <div class="answers">
        <button class="primary" aria-disabled=${isBusy} disabled=${Boolean(this.#edited().problem)} onClick=${this.#approve}>
          <${Icon} name="check" />${mode === "edit" ? "Approve with these" : "Approve"}
        </button>
        ${mode === "edit" ? html`<button aria-disabled=${isBusy} onClick=${this.#look}>Discard changes</button>`
          : html`<button aria-disabled=${isBusy} onClick=${this.#ask}><${Icon} name="cross" />Reject…</button>`}
        ${isInWords(this.props.approval) && html`<button aria-disabled=${isBusy} onClick=${this.#say}>Answer in words…</button>`}
      </div>
    `;
  }

  // The token is this page's: whoever goes on sends it along, and the mesh forwards it.
  #token(isBusy) {
    const { hasToken, identify } = this.props;
    return html`
      <p class="hint">${hasToken ? "Your access token is sent along, and passed on to that agent." : "Set an access token first: it is sent along, and passed on to that agent."}</p>
      <div class="answers">
        ${!hasToken && html`<button onClick=${identify}><${Icon} name="person" />Set token…</button>`}
        <button class="primary" aria-disabled=${isBusy} disabled=${!hasToken} onClick=${() => this.#decide({ approved: true })}>Go on</button>
        <button aria-disabled=${isBusy} onClick=${this.#ask}><${Icon} name="cross" />Reject…</button>
      </div>
    `;
  }

  #unknown(isBusy) {
    const say = (action) => () => this.#decide({ action });
    return html`
      <div class="answers">
        <button class="primary" aria-disabled=${isBusy} onClick=${say("retry")}>Run it again</button>
        <button aria-disabled=${isBusy} onClick=${say("skip")}>Skip it</button>
      </div>
    `;
  }
}
