// @ts-check
// Agents that were started together. A few are shown as they are, many are counted: opened on demand, some at a time.
import { visible } from "../exact-json.js";
import { Component, html } from "../html.js";
import { iterationOf } from "../place.js";
import { areFew, countsOf, isAtWork, nameAt, statusAt, statusOfAll } from "../tree-status.js";
import { answerOf } from "../turn.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";
import { Memo } from "./memo.js";
import { counted, duration, inSpiteOf, RUN } from "./words.js";

/** @import { Started, Turn } from "../turn.js" */

const A_PAGE = 25;

/**
 * @typedef {object} Props
 * @property {Started} started
 * @property {string} place of the node that started them
 * @property {{turn: Turn, names: Record<string, string>}} view
 * @property {unknown} Agent draws what happens in an agent
 * @property {unknown} Answer draws what it answered
 */

/** @extends {Component<Props, {isOpen: boolean, first: number}>} */
export class StartedAgents extends Component {
  state = { isOpen: false, first: 0 };

  // What is closed is not drawn.
  #toggled = (/** @type {{target: HTMLDetailsElement}} */ { target }) => this.setState({ isOpen: target.open });

  render() {
    const { started, place, view } = this.props;
    const isWorking = isAtWork(statusAt(view.turn, place));
    if (areFew(started, place)) return html`<div class="started">${this.#agents(started.places, true)}</div>`;
    const words = counted(countsOf(started, isWorking));
    return html`
      <details class="node many" onToggle=${this.#toggled}>
        <summary>
          <span class=${`dot ${statusOfAll(started, isWorking)}`}></span>
          <${Icon} name="agent" />
          <span class="gist">${words}</span>
          <${Icon} name="chevron" />
        </summary>
        ${this.state.isOpen && html`<div class="fold started">${this.#page()}</div>`}
      </details>
    `;
  }

  #page() {
    const { places } = this.props.started;
    const { first } = this.state;
    const to = (/** @type {number} */ next) => this.setState({ first: next });
    const last = Math.min(first + A_PAGE, places.length);
    return html`
      <p class="pages">
        <button class="link" disabled=${first === 0} onClick=${() => to(first - A_PAGE)}>Earlier</button>
        <span>${first + 1}–${last} of ${places.length}</span>
        <button class="link" disabled=${last === places.length} onClick=${() => to(first + A_PAGE)}>Later</button>
      </p>
      ${this.#agents(places.slice(first, last), false)}
    `;
  }

  /** @type {(places: string[], isOpen: boolean) => unknown} */
  #agents(places, isOpen) {
    const { view, Agent, Answer } = this.props;
    const { turn, names } = view;
    return places.map((place) => html`
      <${Memo} key=${place} by=${[turn.agents.get(place)?.version, turn.status, names]}
        draw=${() => html`<${StartedAgent} ...${{ place, view, Agent, Answer }} isOpenAtWork=${isOpen} />`} />
    `);
  }
}

/**
 * An agent that was started: a line, and below it all that it does.
 * @extends {Component<{place: string, view: Props["view"], isOpenAtWork: boolean, Agent: unknown, Answer: unknown}, {isOpen: boolean}>}
 */
class StartedAgent extends Component {
  state = { isOpen: false };

  // What is closed is not drawn.
  #toggled = (/** @type {{target: HTMLDetailsElement}} */ { target }) => this.setState({ isOpen: target.open });

  render() {
    const { place, view, isOpenAtWork } = this.props;
    const { turn, names } = view;
    const { title = "", task = "", ms = 0 } = turn.nodes.get(place) ?? {};
    const status = statusAt(turn, place);
    const isOpen = isOpenAtWork && isAtWork(status);
    const name = nameAt(turn, names, place);
    return html`
      <details class=${`node agent-call ${status}`} open=${isOpen} onToggle=${this.#toggled} aria-label=${visible(title || name)}>
        <summary>
          <span class=${`dot ${status}`}></span>
          <${Icon} name="agent" />
          <strong>${visible(name)}</strong>
          ${iterationOf(place) > 0 && html`<span class="iteration">item ${iterationOf(place)}</span>`}
          <span class="gist">${visible(title || task).slice(0, 200)}</span>
          <span class="phase">${RUN[status] ?? status}${ms > 0 ? `, ${duration(ms)}` : ""}</span>
          <${Icon} name="chevron" />
        </summary>
        ${(isOpen || this.state.isOpen) && html`<div class="fold">${this.#inside(status, task)}</div>`}
      </details>
    `;
  }

  /** @type {(status: string, task: string) => unknown} */
  #inside(status, task) {
    const { place, view, Agent, Answer } = this.props;
    const { text = "", output, invalid = "" } = view.turn.nodes.get(place) ?? {};
    const answer = text && answerOf(view.turn, place, text);
    return html`
      ${task && html`<p class="task">${visible(task)}</p>`}
      <${Agent} place=${place} view=${view} />
      ${answer && (status === "completed" ? html`<${Answer} text=${answer} output=${output} />` : html`<${LongText} text=${visible(answer)} label="Why" />`)}
      ${invalid && html`<p class="objection">${inSpiteOf(invalid)}</p>`}
    `;
  }
}
