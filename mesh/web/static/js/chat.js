// What the page knows and what a person can do with it. Views read `state` and call the methods; every change
// of `state` tells the listener.
import { Api, newKey } from "./api.js";
import { Feed } from "./feed.js";
import * as conversations from "./conversation.js";

const OPENING_MS = 2_000;
const LIST_EVENTS = ["user_message", "approval_required", "approval_resolved", "paused", "completed", "error"];

export class Chat {
  state = {
    conversation: conversations.empty(),
    connection: { state: "idle", why: "" },
    sending: false,
    stopping: false,
    problem: "",
    tree: null,
    treeProblem: "",
    tools: [],
    deciding: {}, // uuid -> "busy" or what went wrong
  };
  #feed = null;
  #unsent = null;

  constructor(api = new Api(), { changed, listChanged, opened }) {
    Object.assign(this, { api, changed, listChanged, wasOpened: opened });
  }

  // Shows a conversation, from its first event on; without an id a new one.
  open(id = "") {
    this.#feed?.stop();
    this.#feed = null;
    this.#unsent = null;
    this.#set({
      conversation: conversations.empty(id), connection: { state: "idle", why: "" }, problem: "", deciding: {}, stopping: false,
    });
    this.wasOpened(id);
    if (id) this.#follow(id);
  }

  async loadAgent() {
    const failed = (problem) => this.#set({ treeProblem: problem.message });
    await this.api.tree().then(({ tree }) => this.#set({ tree, treeProblem: "" }), failed);
    await this.api.tools().then(({ tools }) => this.#set({ tools }), failed);
  }

  // Sends a message; true when the mesh has it. A new conversation is watched before anything happens in it.
  async send(message) {
    this.#set({ sending: true, problem: "" });
    try {
      if (!this.state.conversation.id) await this.#begin();
      await this.api.send(this.state.conversation.id, message, this.#keyFor(message));
      this.#unsent = null;
      this.#feed?.hurry();
      return true;
    } catch (problem) {
      this.#set({ problem: problem.message });
      return false;
    } finally {
      this.#set({ sending: false });
      this.listChanged();
    }
  }

  async #begin() {
    const { conversation } = await this.api.create();
    this.open(conversation.id);
    this.#set({ sending: true });
    await Promise.race([this.#feed.opened, new Promise((resolve) => setTimeout(resolve, OPENING_MS))]);
  }

  // The same message again, after an answer was lost, is the same message: the mesh takes it once.
  #keyFor(message) {
    if (this.#unsent?.message !== message) this.#unsent = { message, key: newKey() };
    return this.#unsent.key;
  }

  async decide(uuid, decision) {
    this.#deciding(uuid, { busy: true });
    try {
      await this.api.approve(uuid, decision);
      this.#feed?.hurry();
    } catch (problem) {
      this.#deciding(uuid, { busy: false, problem: problem.message });
    }
  }

  async stop() {
    this.#set({ stopping: true, problem: "" });
    try {
      await this.api.cancel(this.state.conversation.id);
    } catch (problem) {
      this.#set({ problem: problem.message });
    } finally {
      this.#set({ stopping: false });
    }
  }

  // A person says who they are: what was refused is asked again.
  identify(token, user) {
    this.api.token = token;
    this.api.user = user;
    this.loadAgent();
    this.listChanged();
    if (this.state.conversation.id) this.open(this.state.conversation.id);
  }

  dismiss = () => this.#set({ problem: "" });
  hurry = () => this.#feed?.hurry();

  // Out of sight for long: the connection is given back (a browser has few of them for one server).
  rest() {
    if (!this.#feed) return;
    this.#feed.stop();
    this.#feed = null;
  }

  wake() {
    if (this.#feed) this.#feed.hurry();
    else if (this.state.conversation.id) this.#follow(this.state.conversation.id);
  }

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

  #take(events) {
    this.#set({ conversation: conversations.fold(events, this.state.conversation) });
    if (events.some((event) => LIST_EVENTS.includes(event.type))) this.listChanged();
  }

  #connected(connection) {
    const was = this.state.connection;
    if (was.state === connection.state && was.why === connection.why) return;
    this.#set({ connection });
    if (connection.state === "live" && was.state === "reconnecting") {
      this.listChanged();
      if (this.state.treeProblem) this.loadAgent();
    }
  }

  #deciding(uuid, how) {
    this.#set({ deciding: { ...this.state.deciding, [uuid]: how } });
  }

  #set(change) {
    this.state = { ...this.state, ...change };
    this.changed();
  }
}
