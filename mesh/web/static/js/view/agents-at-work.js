// @ts-check
// The agents of the newest turn as a tree that folds and filters; a person steps in with any of them. Of a thousand
// rows, those in view are in the page.
import { counts, hasEnded, inView, lineOf, nameOf, ranFrom, rowsOf, standing } from "../agent-rows.js";
import { AgentsFeed } from "../agents-feed.js";
import { Acts, messageOf } from "../api.js";
import { visible } from "../exact-json.js";
import { Component, createRef, html } from "../html.js";
import { Icon } from "./icons.js";
import { count, dollars, duration } from "./words.js";

/** @import { Agent, Row } from "../agent-rows.js" */
/** @import { Api, Step } from "../api.js" */

const ROW_HEIGHT = 58; // as in agents.css
const TICK_MS = 1_000;

/** @type {Record<string, string>} */
const STANDS = {
  running: "running", modified: "changed, not read yet", awaiting_user: "waits for a person", paused: "paused", queued: "queued",
  completed: "done", deleted: "deleted", error: "failed",
};
/** @type {Record<string, string>} the colour of the dot */
const DOT = { modified: "running", awaiting_user: "waiting", paused: "idle", queued: "idle", error: "failed" };

/** @typedef {"comment" | "modify" | "delete"} Form */

/**
 * @typedef {object} OwnState
 * @property {string} query
 * @property {string} status
 * @property {Set<string>} folded the ids of agents
 * @property {string} selected the id of an agent
 * @property {{form: Form, id: string} | null} acting
 * @property {Record<string, string>} problems what was refused, by the id of the agent
 * @property {boolean} hasTimeline
 * @property {number} top
 * @property {number} height
 */

/** @extends {Component<{api: Api, conversationId: string, close: () => void}, OwnState>} */
export class AgentsAtWork extends Component {
  /** @type {OwnState} */
  state = { query: "", status: "", folded: new Set(), selected: "", acting: null, problems: {}, hasTimeline: false, top: 0, height: 800 };
  /** @type {AgentsFeed | null} */
  #feed = null;
  #acts = new Acts();
  #rows = createRef();
  #ticking = 0;
  #isDrawing = false;

  componentDidMount() {
    this.#feed = new AgentsFeed(this.props.api, this.props.conversationId, this.#changed);
    this.#ticking = setInterval(() => this.#atWork > 0 && this.forceUpdate(), TICK_MS);
    addEventListener("resize", this.#measure);
    this.#measure();
  }

  componentWillUnmount() {
    this.#feed?.stop();
    clearInterval(this.#ticking);
    removeEventListener("resize", this.#measure);
  }

  // A thousand agents that change at once are drawn once.
  #changed = () => {
    if (this.#isDrawing) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.forceUpdate();
    });
  };

  #measure = () => {
    const list = this.#rows.current;
    if (list) this.setState({ top: list.scrollTop, height: list.clientHeight });
  };

  get #agents() {
    return this.#feed?.agents ?? new Map();
  }

  get #atWork() {
    let number = 0;
    for (const agent of this.#agents.values()) if (!hasEnded(agent)) number += 1;
    return number;
  }

  /** @param {string} id */
  #fold = (id) => this.setState(({ folded }) => {
    const other = new Set(folded);
    if (!other.delete(id)) other.add(id);
    return { folded: other };
  });

  /** @param {Row[]} rows */
  #jump = (rows) => {
    const waiting = rows.flatMap(({ agent }, index) => (standing(agent) === "awaiting_user" ? [index] : []));
    if (!waiting.length) return;
    const at = rows.findIndex(({ agent }) => agent.agentId === this.state.selected);
    this.#select(rows, waiting.find((index) => index > at) ?? waiting[0]);
  };

  /** @type {(rows: Row[], index: number) => void} */
  #select(rows, index) {
    const row = rows[Math.max(0, Math.min(rows.length - 1, index))];
    const list = this.#rows.current;
    if (!row || !list) return;
    const top = rows.indexOf(row) * ROW_HEIGHT;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW_HEIGHT > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_HEIGHT - list.clientHeight;
    this.setState({ selected: row.agent.agentId });
    this.#measure();
  }

  /** @type {(rows: Row[]) => (event: KeyboardEvent) => void} */
  #pressed = (rows) => (event) => {
    if (event.target !== this.#rows.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = rows.findIndex(({ agent }) => agent.agentId === this.state.selected);
    const row = rows[at];
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => this.#select(rows, at + 1),
      ArrowUp: () => this.#select(rows, at - 1),
      Home: () => this.#select(rows, 0),
      End: () => this.#select(rows, rows.length - 1),
      ArrowLeft: () => row && row.below > 0 && !row.isFolded && this.#fold(row.agent.agentId),
      ArrowRight: () => row?.isFolded && this.#fold(row.agent.agentId),
      c: () => row && this.#act("comment", row.agent),
      m: () => row && this.#act("modify", row.agent),
      p: () => row && this.#hold(row.agent),
      d: () => row && this.#act("delete", row.agent),
      w: () => this.#jump(rows),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };

  /** @type {(form: Form, agent: Agent) => void} */
  #act = (form, agent) => !hasEnded(agent) && this.setState({ acting: { form, id: agent.agentId }, selected: agent.agentId });

  /** @param {Agent} agent */
  #hold = (agent) => !hasEnded(agent) && this.#step(agent.agentId, { action: agent.detail === "paused" ? "resume" : "pause" });

  /**
   * Steps in. True when the mesh has it; otherwise why not is shown at the row, and nothing that was typed is lost.
   * @type {(id: string, step: Step) => Promise<boolean>}
   */
  #step = async (id, step) => {
    const say = (/** @type {string} */ problem) => this.setState(({ problems }) => ({ problems: { ...problems, [id]: problem } }));
    try {
      const { agent } = await this.#acts.once([id, step], (key) => this.props.api.intervene(id, step, key));
      this.#feed?.put(agent);
      say("");
      return true;
    } catch (error) {
      say(messageOf(error));
      return false;
    }
  };

  render() {
    const { query, status, folded, acting, hasTimeline } = this.state;
    const rows = rowsOf(this.#agents.values(), folded, { query, status });
    const isActing = acting && this.#agents.get(acting.id);
    return html`
      <aside class=${`at-work ${hasTimeline ? "with-timeline" : ""}`} aria-label="Agents at work">
        ${this.#head(rows)}
        ${this.#feed?.problem && html`<p class="problem" role="status">${this.#feed.problem} Trying again …</p>`}
        ${isActing && html`<${ActionForm} key=${`${acting.form} ${acting.id}`} ...${this.#form(acting, isActing)} />`}
        ${rows.length === 0 && html`<p class="none">${this.#agents.size ? "No agent fits." : "No agent has worked here yet."}</p>`}
        <div class="rows" role="tree" aria-label="Agents" tabindex="0" ref=${this.#rows} onScroll=${this.#measure} onKeyDown=${this.#pressed(rows)}>
          <div style=${{ height: `${rows.length * ROW_HEIGHT}px` }}>${this.#inView(rows)}</div>
        </div>
      </aside>
    `;
  }

  /** @param {Row[]} rows */
  #head(rows) {
    const { query, status, hasTimeline } = this.state;
    const found = counts(this.#agents.values());
    const waiting = found.awaiting_user ?? 0;
    const shown = Object.keys(STANDS).filter((one) => found[one] || one === status);
    return html`
      <header>
        <h2>${count(this.#agents.size, "agent")}, ${this.#atWork.toLocaleString("en")} at work</h2>
        ${waiting > 0 && html`<button class="link waits" onClick=${() => this.#jump(rows)}>${waiting} ${waiting === 1 ? "waits" : "wait"}</button>`}
        <button class=${`icon-button ${hasTimeline ? "on" : ""}`} onClick=${() => this.setState({ hasTimeline: !hasTimeline })} aria-pressed=${hasTimeline} aria-label="Timeline" title="Timeline"><${Icon} name="timeline" /></button>
        <button class="icon-button" onClick=${this.props.close} aria-label="Close the agents at work"><${Icon} name="close" /></button>
      </header>
      <div class="filters">
        <label class="search"><${Icon} name="search" /><input type="search" value=${query} placeholder="Filter" aria-label="Filter agents"
          onInput=${(/** @type {{target: HTMLInputElement}} */ { target }) => this.setState({ query: target.value, top: 0 })} /></label>
        <select aria-label="Status" value=${status} onChange=${(/** @type {{target: HTMLSelectElement}} */ { target }) => this.setState({ status: target.value, top: 0 })}>
          <option value="">all</option>
          ${shown.map((one) => html`<option key=${one} value=${one}>${STANDS[one]} (${found[one] ?? 0})</option>`)}
        </select>
      </div>
    `;
  }

  /** @type {(acting: {form: Form, id: string}, agent: Agent) => object} */
  #form({ form, id }, agent) {
    const below = rowsOf(this.#agents.values(), new Set(), { query: "", status: "" }).find((row) => row.agent.agentId === id)?.below ?? 0;
    return {
      form, agent, below, problem: this.state.problems[id] ?? "",
      step: (/** @type {Step} */ step) => this.#step(id, step),
      close: () => {
        this.setState(({ problems }) => ({ acting: null, problems: { ...problems, [id]: "" } }));
        this.#rows.current?.focus();
      },
    };
  }

  /** @param {Row[]} rows */
  #inView(rows) {
    const { top, height, selected, problems, hasTimeline } = this.state;
    const [first, last] = inView(rows.length, top, height, ROW_HEIGHT);
    const now = Date.now();
    const span = hasTimeline ? spanOf(rows, now) : null;
    const handlers = { fold: this.#fold, act: this.#act, hold: this.#hold };
    return rows.slice(first, last).map((row, index) => html`
      <${AgentRow} key=${row.agent.agentId} ...${{ row, now, span, ...handlers }} index=${first + index} problem=${problems[row.agent.agentId] ?? ""}
        isSelected=${row.agent.agentId === selected} select=${() => this.#select(rows, first + index)} />
    `);
  }
}

/** @type {(rows: Row[], now: number) => [number, number]} */
function spanOf(rows, now) {
  const all = rows.flatMap(({ agent }) => {
    const ran = ranFrom(agent, now);
    return ran ? [ran] : [];
  });
  const from = all.reduce((least, [one]) => Math.min(least, one), now);
  return [from, Math.max(from + 1, all.reduce((most, [, one]) => Math.max(most, one), from))];
}

/** @param {{row: Row, index: number, now: number, span: [number, number] | null, isSelected: boolean, problem: string, select: () => void, fold: (id: string) => void, act: (form: Form, agent: Agent) => void, hold: (agent: Agent) => void}} props */
function AgentRow({ row, index, now, span, isSelected, problem, select, fold, act, hold }) {
  const { agent, level, below, isFolded } = row;
  const ran = ranFrom(agent, now);
  const stands = standing(agent);
  const name = visible(nameOf(agent));
  const cost = agent.subtreeCostUsd ?? 0;
  const title = visible(agent.title || agent.userContent).slice(0, 200);
  return html`
    <div class=${`row ${stands} ${isSelected ? "selected" : ""}`} role="treeitem" aria-level=${level} aria-selected=${isSelected} onClick=${select}
      aria-expanded=${below ? !isFolded : undefined} aria-label=${`${name}, ${STANDS[stands]}, ${title}`} style=${{ top: `${index * ROW_HEIGHT}px` }}>
      <div class="what" style=${{ paddingLeft: `${Math.min(level - 1, 12) * 16}px` }}>
        <div class="first">
          ${below > 0
            ? html`<button class=${`fold-button ${isFolded ? "" : "open"}`} onClick=${() => fold(agent.agentId)} aria-label=${`${isFolded ? "Unfold" : "Fold"} ${name}`}><${Icon} name="chevron" /></button>`
            : html`<span class="fold-button"></span>`}
          <span class=${`dot ${DOT[stands] ?? stands}`}></span>
          <strong>${name}</strong>
          <span class="title" title=${title}>${title}</span>
          ${isFolded && html`<span class="iteration">${count(below, "agent")} below</span>`}
          ${!hasEnded(agent) && html`<${Actions} ...${{ agent, name, act, hold }} />`}
        </div>
        <div class=${`second ${problem ? "problem" : ""}`}>
          <span>${STANDS[stands]}</span>
          ${ran && html`<span>${duration(ran[1] - ran[0])}</span>`}
          ${span && agent.machine && html`<span>on ${visible(agent.machine)}</span>`}
          ${cost > 0 && html`<span title=${`of which its own ${dollars(agent.costUsd ?? 0)}`}>${dollars(cost)}</span>`}
          <span class="line" role=${problem ? "alert" : undefined}>${problem || visible(lineOf(agent)).slice(-300)}</span>
        </div>
      </div>
      ${span && html`<${Bar} ...${{ ran, span, stands }} />`}
    </div>
  `;
}

/** @param {{agent: Agent, name: string, act: (form: Form, agent: Agent) => void, hold: (agent: Agent) => void}} props */
function Actions({ agent, name, act, hold }) {
  const isHeld = agent.detail === "paused";
  /** @type {[string, string, () => void][]} */
  const buttons = [
    ["Comment on", "speak", () => act("comment", agent)],
    ["Change", "pen", () => act("modify", agent)],
    [isHeld ? "Resume" : "Pause", isHeld ? "play" : "pause", () => hold(agent)],
    ["Delete", "cross", () => act("delete", agent)],
  ];
  return html`
    <span class="actions">
      ${buttons.map(([label, icon, run]) => html`
        <button key=${icon} class="icon-button small" onClick=${run} aria-label=${`${label} ${name}`} title=${`${label} ${name}`}><${Icon} name=${icon} /></button>
      `)}
    </span>
  `;
}

/** @param {{ran: [number, number] | null, span: [number, number], stands: string}} props */
function Bar({ ran, span: [first, last], stands }) {
  if (!ran) return html`<div class="time"></div>`;
  const [from, to] = ran;
  const part = (/** @type {number} */ at) => (100 * (at - first)) / (last - first);
  const style = { left: `${part(from)}%`, width: `${Math.max(0.5, part(to) - part(from))}%` };
  return html`<div class="time" title=${`began ${duration(from - first)} after the first, took ${duration(to - from)}`}><i class=${stands} style=${style}></i></div>`;
}

/**
 * What is typed for an agent.
 * @extends {Component<{form: Form, agent: Agent, below: number, problem: string, step: (step: Step) => Promise<boolean>, close: () => void}, {text: string, prompt: string, restart: boolean, isBusy: boolean}>}
 */
class ActionForm extends Component {
  constructor(/** @type {any} */ props) {
    super(props);
    const { form, agent } = props;
    this.state = { text: form === "modify" && isWhole(agent.userContent) ? agent.userContent : "", prompt: "", restart: false, isBusy: false };
  }

  #box = createRef();

  componentDidMount() {
    this.#box.current?.focus();
  }

  /** @returns {Step | null} */
  get #step() {
    const { text, prompt, restart } = this.state;
    const { form, agent } = this.props;
    if (form === "comment") return text.trim() ? { action: "comment", text } : null;
    if (form === "delete") return { action: "delete", ...(text.trim() ? { reason: text } : {}) };
    const changes = {
      ...(text.trim() && text !== agent.userContent ? { task: text } : {}),
      ...(prompt.trim() ? { prompt } : {}),
    };
    const hasChanges = Object.keys(changes).length > 0;
    if (!hasChanges && !restart) return null;
    return { action: "modify", ...(hasChanges ? { changes } : {}), ...(restart ? { restart } : {}) };
  }

  #send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const step = this.#step;
    if (!step || this.state.isBusy) return;
    this.setState({ isBusy: true });
    const isTaken = await this.props.step(step);
    this.setState({ isBusy: false });
    if (isTaken) this.props.close();
  };

  #pressed = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.props.close();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey || this.props.form === "comment") && !event.shiftKey) this.#send(event);
  };

  render() {
    const { form, agent, below, problem, close } = this.props;
    const { text, isBusy } = this.state;
    const name = visible(nameOf(agent));
    const headings = { comment: `Tell ${name} something`, modify: `Change ${name}`, delete: `Delete ${name}${goesWith(below)}?` };
    const labels = { comment: "Comment", modify: "Task", delete: "Reason (optional); whoever waits for it is told" };
    return html`
      <form class="action" onSubmit=${this.#send} onKeyDown=${this.#pressed} aria-label=${headings[form]}>
        <h3>${headings[form]}</h3>
        <p class="about">${visible(agent.title || agent.userContent).slice(0, 200)}</p>
        <label>${labels[form]}
          <textarea rows=${form === "delete" ? 1 : 3} ref=${this.#box} value=${text} onInput=${this.#typed("text")}></textarea>
        </label>
        ${form === "modify" && html`
          <label>Prompt, in place of the one that it has (optional)<textarea rows="2" value=${this.state.prompt} onInput=${this.#typed("prompt")}></textarea></label>
          ${beginsAnew(agent) && html`<label class="check"><input type="checkbox" checked=${this.state.restart} onChange=${() => this.setState({ restart: !this.state.restart })} /> Begin anew: what it learned is set aside${below ? `, and ${count(below, "agent")} below it end` : ""}</label>`}
        `}
        ${problem && html`<p class="problem" role="alert">${problem}</p>`}
        <div class="buttons">
          <button type="button" onClick=${close}>Cancel</button>
          <button class=${form === "delete" ? "danger" : "primary"} disabled=${isBusy || !this.#step}>${{ comment: "Tell", modify: "Change", delete: "Delete" }[form]}</button>
        </div>
      </form>
    `;
  }

  /** @param {"text" | "prompt"} field */
  #typed = (field) => (/** @type {{target: HTMLTextAreaElement}} */ { target }) => this.setState({ [field]: target.value });
}

/** @type {(agent: Agent) => boolean} whether it may: a node that is only a part of an agent may not */
const beginsAnew = (agent) => /[@#][^.]*$/.test(agent.place);

/** @param {string} content a mesh cuts what is longer, and a task that was cut must not be sent back as another one */
const isWhole = (content) => content.length <= 1_000;

/** @param {number} below */
const goesWith = (below) => (below ? ` and the ${count(below, "agent")} below it` : "");
