// @ts-check
// The state of the page and what a person can do. Views read `state` and call the methods; the listener is called
// after every change of `state`.
import { Acts, messageOf } from "./api.js";
import { Feed } from "./feed.js";
import * as conversations from "./conversation.js";

/** @import { Api, Decision } from "./api.js" */
/** @import { MeshEvent, Preview } from "./turn.js" */
/** @import { TreeNode } from "./tree-status.js" */

/** @typedef {{state: "idle" | "connecting" | "live" | "reconnecting" | "refused", why: string}} Connection */
/** @typedef {{busy: boolean, problem?: string}} DecisionState how the decision about an approval stands */
/** @typedef {{name: string, nodes?: string[], description?: string, source?: string, destructiveHint?: boolean}} ToolInfo */

/**
 * @typedef {object} State
 * @property {conversations.Conversation} conversation
 * @property {Connection} connection
 * @property {boolean} sending
 * @property {boolean} stopping
 * @property {string} problem
 * @property {TreeNode | null} tree
 * @property {TreeNode[]} calledTrees those of the agents that others may call
 * @property {string} treeProblem
 * @property {ToolInfo[]} tools
 * @property {Record<string, DecisionState>} deciding by the uuid of the approval
 */

const OPENING_TIMEOUT_MS = 2_000;
const LIST_EVENTS = ["user_message", "approval_required", "approval_resolved", "paused", "completed", "error"];

/**
 * What a run has spent, as the stream would tell it. It is not journaled, and so has no number.
 * @type {(run: any, turn: any) => MeshEvent} `turn` is the report's
 */
const spendEvent = ({ place, limits, spent, unsettled, reserved }, { number, seq }) => ({
  type: "spend", turn: number, step: place, node: place, time: "", after: seq, limits, spent, unsettled, reserved,
});

export class Chat {
  /** @type {State} */
  state = {
    conversation: conversations.empty(),
    connection: { state: "idle", why: "" },
    sending: false,
    stopping: false,
    problem: "",
    tree: null,
    calledTrees: [],
    treeProblem: "",
    tools: [],
    deciding: {},
  };
  /** @type {Feed | null} */
  #feed = null;
  #acts = new Acts();
  /** @type {MeshEvent[]} */
  #spends = [];
  #hasAskedForSpend = false;

  /**
   * @param {Api} api
   * @param {{changed: () => void, listChanged: () => void, opened: (id: string) => void}} listeners
   */
  constructor(api, { changed, listChanged, opened }) {
    this.api = api;
    this.changed = changed;
    this.listChanged = listChanged;
    this.wasOpened = opened;
  }

  // Shows a conversation from its first event on, or a new one.
  open(id = "") {
    this.#feed?.stop();
    this.#feed = null;
    this.#spends = [];
    this.#hasAskedForSpend = false;
    this.#set({
      conversation: conversations.empty(id), connection: { state: "idle", why: "" }, problem: "", deciding: {}, stopping: false,
    });
    this.wasOpened(id);
    if (id) this.#follow(id);
  }

  async loadAgent() {
    const failed = (/** @type {unknown} */ error) => this.#set({ treeProblem: messageOf(error) });
    await this.api.tree().then(({ tree, agents = [] }) => this.#set({ tree, calledTrees: agents, treeProblem: "" }), failed);
    await this.api.tools().then(({ tools }) => this.#set({ tools }), failed);
  }

  /**
   * Sends a message. True when the mesh has it. A new conversation is watched before anything happens in it.
   * @param {string} message
   */
  async send(message) {
    const isTaken = await this.#taken(async () => {
      if (!this.state.conversation.id) await this.#begin();
      const { id } = this.state.conversation;
      await this.#acts.once([id, message], (key) => this.api.send(id, message, key));
    });
    this.listChanged();
    return isTaken;
  }

  /**
   * Asks the mesh for something that the page follows. True when the mesh has it.
   * @param {() => Promise<void>} ask
   */
  async #taken(ask) {
    this.#set({ sending: true, problem: "" });
    try {
      await ask();
      this.#feed?.retryNow();
      return true;
    } catch (error) {
      this.#set({ problem: messageOf(error) });
      return false;
    } finally {
      this.#set({ sending: false });
    }
  }

  async #begin() {
    const { conversation } = await this.api.create();
    this.open(conversation.id);
    this.#set({ sending: true });
    // A stream that does not open must not keep the message back: its events are replayed later.
    await Promise.race([this.#feed?.opened, new Promise((resolve) => setTimeout(resolve, OPENING_TIMEOUT_MS))]);
  }

  /**
   * @param {string} uuid of the approval
   * @param {Decision} decision
   */
  async decide(uuid, decision) {
    this.#deciding(uuid, { busy: true });
    try {
      await this.api.decide(uuid, decision);
      this.#feed?.retryNow();
    } catch (error) {
      this.#deciding(uuid, { busy: false, problem: messageOf(error) });
    }
  }

  /**
   * The rest of the preview of an approval.
   * @param {string} uuid
   * @param {number} offset
   * @returns {Promise<Preview>}
   */
  more = (uuid, offset) => this.api.preview(uuid, offset);

  async stop() {
    this.#set({ stopping: true, problem: "" });
    try {
      await this.api.cancel(this.state.conversation.id);
    } catch (error) {
      this.#set({ problem: messageOf(error) });
    } finally {
      this.#set({ stopping: false });
    }
  }

  /**
   * Steps in with the root agent while it works. True when the mesh has it.
   * @param {"comment" | "pause" | "resume"} action
   * @param {string} [text]
   */
  stepIn(action, text) {
    const step = text === undefined ? { action } : { action, text };
    const { id } = this.state.conversation;
    return this.#taken(() => this.#acts.once([id, step], (key) => this.api.intervene(id, step, key)));
  }

  /**
   * A person says who they are: what was refused is asked again.
   * @param {string} token
   * @param {string} user
   */
  identify(token, user) {
    this.api.token = token;
    this.api.user = user;
    this.loadAgent();
    this.listChanged();
    if (this.state.conversation.id) this.open(this.state.conversation.id);
  }

  dismiss = () => this.#set({ problem: "" });
  retryNow = () => this.#feed?.retryNow();

  // Closes the connection of a page that is hidden for long: a browser has only six for each server.
  suspend() {
    if (!this.#feed) return;
    this.#feed.stop();
    this.#feed = null;
  }

  resume() {
    if (this.#feed) this.#feed.retryNow();
    else if (this.state.conversation.id) this.#follow(this.state.conversation.id);
  }

  /** @param {string} id */
  #follow(id) {
    const feed = new Feed({
      id,
      after: this.state.conversation.seq,
      headers: () => this.api.headers(),
      onEvents: (events) => this.#feed === feed && this.#take(events),
      onState: (state, why) => queueMicrotask(() => this.#feed === feed && this.#connected({ state, why })),
    });
    this.#feed = feed;
  }

  /** @param {MeshEvent[]} events */
  #take(events) {
    const { id, seq } = this.state.conversation;
    // What is shown is not in the conversation any more.
    if (events.some((event) => event.type === "store_went_back" && (event.seq ?? 0) <= seq)) return this.open(id);
    const known = conversations.fold([...events, ...this.#spends], this.state.conversation);
    const turn = conversations.lastTurn(known)?.number ?? 0;
    if (this.#spends.length && this.#spends[0].turn <= turn) this.#spends = []; // they are told
    this.#set({ conversation: known });
    if (!this.#hasAskedForSpend && conversations.lastTurn(known)?.isBounded) this.#loadSpend();
    if (events.some((event) => LIST_EVENTS.includes(event.type))) this.listChanged();
  }

  // What the newest turn has spent. A stream tells only what is spent while somebody watches.
  async #loadSpend() {
    this.#hasAskedForSpend = true;
    const { conversation: { id } } = this.state;
    try {
      const { turn } = await this.api.spend(id);
      if (id !== this.state.conversation.id) return;
      if (turn) this.#spends = [turn, ...turn.runs].map((run) => spendEvent(run, turn));
      this.#take([]);
    } catch (error) {
      this.#set({ problem: messageOf(error) });
    }
  }

  /** @param {Connection} connection */
  #connected(connection) {
    const was = this.state.connection;
    if (was.state === connection.state && was.why === connection.why) return;
    this.#set({ connection });
    if (connection.state !== "live") this.#hasAskedForSpend = false; // what is spent meanwhile is missed
    if (connection.state === "live" && was.state === "reconnecting") {
      this.listChanged();
      if (this.state.treeProblem) this.loadAgent();
    }
  }

  /** @type {(uuid: string, how: DecisionState) => void} */
  #deciding(uuid, how) {
    this.#set({ deciding: { ...this.state.deciding, [uuid]: how } });
  }

  /** @param {Partial<State>} change */
  #set(change) {
    this.state = { ...this.state, ...change };
    this.changed();
  }
}
