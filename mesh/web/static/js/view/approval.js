// A question to a person: what wants to run, where, with which arguments; and the ways to answer.
import * as exact from "../exact-json.js";
import { Component, html } from "../html.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";

const LONGEST = 4_000;

// What the mesh says of it, without the list of arguments: they are shown in full below.
const described = ({ description = "" }) => exact.visible(description.split(/\n {2}\S+ = /)[0]).slice(0, LONGEST);

export class Approval extends Component {
  state = { mode: "look", draft: "", reason: "" };
  #card = null;

  // Who just answered with the keyboard goes on from the next question, or from the message box.
  componentWillUnmount() {
    if (!this.#card?.contains(document.activeElement)) return;
    const others = [...document.querySelectorAll(".approval")].filter((card) => card !== this.#card);
    (others[0]?.querySelector("button.primary") ?? document.getElementById("message"))?.focus();
  }

  #edit = () => {
    if (this.props.state?.busy) return;
    this.setState({ mode: "edit", draft: exact.shown(this.props.approval.tool_args ?? {}) }, () => this.#focus("textarea"));
  };

  #look = () => this.setState({ mode: "look" }, () => this.#focus("button.primary"));
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

  render({ approval, state, where, position }) {
    const isUnknown = approval.kind === "unknown_outcome";
    const isBusy = state?.busy ?? false;
    return html`
      <section class="approval" aria-label=${`Approval: ${exact.visible(approval.tool_name)}`} onKeyDown=${this.#escape}
        ref=${(element) => (this.#card = element)} aria-busy=${isBusy}>
        <header>
          <${Icon} name="hand" />
          <h3>${isUnknown ? "Nobody knows whether this ran" : "Approval needed"}</h3>
          <span class="place">${position}</span>
        </header>
        <p class="what"><code>${exact.visible(approval.tool_name)}</code> <span>in ${exact.visible(where)}</span>
          ${approval.remote_agent_name && html`<span>, asked by agent ${exact.visible(approval.remote_agent_name)}</span>`}
        </p>
        ${isUnknown && html`<p class="hint">A process died between the start of this call and its result. Look at the real thing, then decide.</p>`}
        <p class="description">${described(approval)}</p>
        ${this.#arguments(isUnknown)}
        ${approval.expires_at && html`<p class="hint">Counts as rejected after ${new Date(approval.expires_at).toLocaleString()}.</p>`}
        ${state?.problem && html`<p class="problem" role="alert">${state.problem}</p>`}
        ${isUnknown ? this.#unknown(isBusy) : this.#known(isBusy)}
      </section>
    `;
  }

  #arguments(isUnknown) {
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
          ${!isUnknown && html`<button class="link" onClick=${this.#edit}>Edit</button>`}
        </div>
        <${LongText} text=${exact.shown(this.props.approval.tool_args ?? {})} label="Arguments" />
      </div>
    `;
  }

  #known(isBusy) {
    const { mode } = this.state;
    if (mode === "reject") {
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
    return html`
      <div class="answers">
        <button class="primary" aria-disabled=${isBusy} disabled=${Boolean(this.#edited().problem)} onClick=${this.#approve}>
          <${Icon} name="check" />${mode === "edit" ? "Approve with these" : "Approve"}
        </button>
        ${mode === "edit" ? html`<button aria-disabled=${isBusy} onClick=${this.#look}>Discard changes</button>`
          : html`<button aria-disabled=${isBusy} onClick=${this.#ask}><${Icon} name="cross" />Reject…</button>`}
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
