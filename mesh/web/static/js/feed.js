// @ts-check
// The events of one conversation. Reconnects by itself and loses nothing: it says which event it received last, and
// the mesh replays what follows.
import { ApiError, bodyOf } from "./api.js";
import * as exact from "./exact-json.js";
import { readStream } from "./sse.js";

/** @import { Connection } from "./chat.js" */
/** @import { MeshEvent } from "./turn.js" */

/**
 * @typedef {object} Options
 * @property {string} id of the conversation
 * @property {number} [after] the last event that is known already
 * @property {() => Record<string, string>} headers
 * @property {(events: MeshEvent[]) => void} onEvents gets what came together
 * @property {(state: Connection["state"], why: string) => void} onState
 */

const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 10_000;
const REFUSALS = [400, 401, 403, 404]; // asking again gives the same answer

export class Feed {
  #stopped = new AbortController();
  /** @type {() => void} */
  #wake = () => {};
  #wait = FIRST_WAIT_MS;
  #after = 0;
  /** @type {() => void} */
  #isOpen;

  /** @param {Options} options */
  constructor({ id, after = 0, headers, onEvents, onState }) {
    this.id = id;
    this.headers = headers;
    this.onEvents = onEvents;
    this.onState = onState;
    this.#after = after;
    /** @type {PromiseWithResolvers<void>} */
    const { promise, resolve } = Promise.withResolvers();
    this.opened = promise;
    this.#isOpen = resolve;
    this.#run();
  }

  stop = () => this.#stopped.abort();
  retryNow = () => this.#wake();

  async #run() {
    this.onState("connecting", "");
    while (!this.#stopped.signal.aborted) {
      const why = await this.#connection();
      if (this.#stopped.signal.aborted || why === null) return;
      this.onState("reconnecting", why);
      await this.#pause();
    }
  }

  // Reads one connection to its end. Returns why it ended, or null if retrying is of no use.
  async #connection() {
    const cut = new AbortController();
    const signal = AbortSignal.any([cut.signal, this.#stopped.signal]);
    try {
      const response = await fetch(`/api/conversation/${encodeURIComponent(this.id)}/events?after=${this.#after}`, {
        signal, cache: "no-store",
        headers: { Accept: "text/event-stream", "Last-Event-ID": String(this.#after), ...this.headers() },
      });
      if (!response.headers.get("content-type")?.startsWith("text/event-stream")) await bodyOf(response);
      if (!response.body) return "The connection was closed.";
      return await readStream(response.body, cut, (events) => this.#take(events));
    } catch (error) {
      if (!(error instanceof ApiError) || !error.status) return "The connection was lost.";
      if (!REFUSALS.includes(error.status)) return error.message;
      this.onState("refused", error.message);
      return null;
    }
  }

  /** @param {{data: string}[]} received */
  #take(received) {
    this.#wait = FIRST_WAIT_MS;
    this.#isOpen();
    this.onState("live", "");
    const events = received.map((one) => exact.parse(one.data));
    const end = events.find((event) => event.type === "cut_off");
    this.#after = events.reduce(lastOf, this.#after);
    if (events.length) this.onEvents(events.filter((event) => event.type !== "cut_off"));
    return end?.message;
  }

  #pause() {
    const wait = this.#wait * (0.5 + Math.random());
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    /** @type {Promise<void>} */
    const pause = new Promise((resolve) => {
      const timer = setTimeout(resolve, wait);
      this.#wake = () => (clearTimeout(timer), resolve());
      this.#stopped.signal.addEventListener("abort", this.#wake, { once: true });
    });
    return pause;
  }
}

// The number of the last event. Where the store has lost events, those that follow have their numbers.
/** @type {(after: number, event: any) => number} */
const lastOf = (after, event) => (event.type === "store_went_back" ? event.seq : Math.max(after, event.seq ?? 0));
