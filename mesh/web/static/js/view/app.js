// @ts-check
// The whole page.
import { announcementOf } from "../approvals.js";
import { isOpen, lastTurn, title } from "../conversation.js";
import { visible } from "../exact-json.js";
import { Component, html } from "../html.js";
import { hasModel, namesOf } from "../tree-status.js";
import { pending, pendingCount } from "../turn.js";
import { AgentPanel } from "./agent-panel.js";
import { AgentsAtWork } from "./agents-at-work.js";
import { Composer } from "./composer.js";
import { Header } from "./header.js";
import { Identity } from "./identity.js";
import { Sidebar } from "./sidebar.js";
import { Transcript } from "./transcript.js";

/** @import { Chat, State } from "../chat.js" */
/** @import { Directory, List } from "../directory.js" */
/** @import { TreeNode } from "../tree-status.js" */
/** @import { Turn } from "../turn.js" */

/** @typedef {{chat: Chat, directory: Directory, state: State, list: List}} Props */
/**
 * `drawer` is open where the page is narrow; that of the agents at work, everywhere.
 * @typedef {{drawer: "" | "list" | "agent" | "agents", isAsking: boolean}} OwnState
 */


/** @extends {Component<Props, OwnState>} */
export class App extends Component {
  /** @type {OwnState} */
  state = { drawer: "", isAsking: false };
  /** @type {{tree: TreeNode | null, names: Record<string, string>}} */
  #names = { tree: null, names: {} };

  componentDidMount() {
    addEventListener("keydown", (event) => event.key === "Escape" && this.#close());
    this.componentDidUpdate();
  }

  componentDidUpdate() {
    const { conversation } = this.props.state;
    const waits = pendingCount(lastTurn(conversation)) > 0;
    document.title = `${waits ? "● " : ""}${visible(title(conversation)).slice(0, 60) || "mesh"}`;
  }

  #close = () => this.state.drawer && this.setState({ drawer: "" });
  #identify = () => this.setState({ isAsking: true });
  /** @param {OwnState["drawer"]} drawer */
  #toggle = (drawer) => this.setState((now) => ({ drawer: now.drawer === drawer ? "" : drawer }));

  /** @param {string} id */
  #open = (id) => {
    const { conversation, connection } = this.props.state;
    if (!id || id !== conversation.id || connection.state === "refused") this.props.chat.open(id);
    this.setState({ drawer: "" });
  };

  /**
   * The same object for the same tree: turns that did not change are not drawn again.
   * @param {State} state
   */
  #namesOf({ tree, calledTrees }) {
    if (this.#names.tree !== tree) this.#names = { tree, names: namesOf([...(tree ? [tree] : []), ...calledTrees]) };
    return this.#names.names;
  }

  render() {
    const { chat, directory, state, list } = this.props;
    const { drawer, isAsking } = this.state;
    const { conversation, tree } = state;
    const turn = lastTurn(conversation);
    const names = this.#namesOf(state);
    /** @type {Chat["identify"]} */
    const identify = (token, user) => chat.identify(token, user);
    /** @type {Chat["decide"]} */
    const decide = (uuid, decision) => chat.decide(uuid, decision);
    const access = { hasToken: Boolean(chat.api.token), identify: this.#identify };
    return html`
      <a class="skip" href="#message" onClick=${skip}>To the message box</a>
      <div class="frame">
        <${Sidebar} ...${{ list, directory, open: this.#open }} current=${conversation.id} isOpen=${drawer === "list"} close=${this.#close} />
        <main>
          <${Header} ...${{ conversation, turn, drawer }} connection=${state.connection} toggle=${this.#toggle} ...${access} />
          ${problems(chat, state)}
          <${Transcript} key=${`t${conversation.id}`} ...${{ conversation, ...access }} names=${names} deciding=${state.deciding}
            decide=${decide} more=${chat.more} empty=${html`<${Welcome} tree=${tree} isNew=${!conversation.id} />`} />
          <${Composer} ...${composing(chat, state, turn)} focusKey=${conversation.id} />
        </main>
        <${AgentPanel} ...${{ tree, turn, names }} calledTrees=${state.calledTrees} tools=${state.tools} problem=${state.treeProblem} isOpen=${drawer === "agent"} close=${this.#close} />
        ${drawer === "agents" && conversation.id && html`<${AgentsAtWork} key=${conversation.id} api=${chat.api} conversationId=${conversation.id} close=${this.#close} />`}
        ${drawer && html`<div class=${`veil ${drawer}`} onClick=${this.#close}></div>`}
      </div>
      <p class="hidden" role="status" aria-live="polite">${announcement(turn)}</p>
      ${isAsking && html`<${Identity} api=${chat.api} identify=${identify} close=${() => this.setState({ isAsking: false })} />`}
    `;
  }
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("message")?.focus();
}

/** @type {(chat: Chat, state: State, turn?: Turn) => import("./composer.js").Props} */
function composing(chat, state, turn) {
  const waits = pendingCount(turn) > 0;
  const isCompleted = state.conversation.completed;
  const canTell = isOpen(turn) && !waits && Boolean(state.tree && hasModel(state.tree));
  const isHeld = Boolean(turn?.held.has("0"));
  return {
    canSend: !state.sending && !isOpen(turn) && !isCompleted && state.connection.state !== "refused",
    canTell: canTell && !state.sending,
    canStop: isOpen(turn),
    isHeld,
    isStopping: state.stopping,
    placeholder: placeholderFor(isCompleted, waits, isOpen(turn), canTell),
    send: (/** @type {string} */ text) => chat.send(text),
    tell: (/** @type {string} */ text) => chat.stepIn("comment", text),
    stop: () => chat.stop(),
    hold: () => void chat.stepIn(isHeld ? "resume" : "pause"),
  };
}

/** @type {(isCompleted: boolean, waits: boolean, isOpen: boolean, canTell: boolean) => string} */
function placeholderFor(isCompleted, waits, isOpen, canTell) {
  if (isCompleted) return "This conversation is closed";
  if (waits) return "Decide what waits above first";
  if (canTell) return "The agent is working: tell it something now …";
  return isOpen ? "The agent is working …" : "Message the agent";
}

/** @param {Chat} chat @param {State} state */
function problems(chat, { connection, problem }) {
  const isAway = connection.state === "reconnecting";
  return html`
    ${isAway && html`<div class="banner away" role="status"><span class="dot running"></span><span><strong>Reconnecting …</strong> ${connection.why}</span></div>`}
    ${connection.state === "refused" && html`<div class="banner" role="alert">${connection.why}</div>`}
    ${problem && html`
      <div class="banner" role="alert"><span>${problem}</span><button class="link" onClick=${chat.dismiss}>Dismiss</button></div>
    `}
  `;
}

/** @param {{tree: TreeNode | null, isNew: boolean}} props */
const Welcome = ({ tree, isNew }) => isNew && html`
  <div class="welcome">
    <img src="/static/icon.svg" alt="" width="48" height="48" />
    <h2>${visible(tree?.name ?? "Agent")}</h2>
    <p>${visible(tree?.description || "Ask it something. Whatever changes things stops here first, and waits for you.")}</p>
  </div>
`;

const MOST_ANNOUNCED = 5;
/** @type {Record<string, string>} */
const ANNOUNCED = {
  running: "The agent is working", completed: "The answer is complete", cancelled: "Stopped", failed: "The turn failed",
};

/**
 * What a screen reader is told: states, not every word as it streams.
 * @param {Turn | undefined} turn
 */
function announcement(turn) {
  const [asked, waiting] = [pending(turn, MOST_ANNOUNCED), pendingCount(turn)];
  const more = waiting > asked.length ? [`${waiting - asked.length} more wait`] : [];
  if (asked.length) return [...asked.map(announcementOf), ...more].join(". ");
  return turn ? (ANNOUNCED[turn.status] ?? "") : "";
}
