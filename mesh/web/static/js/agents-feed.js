// @ts-check
// The agents of the newest turn of a conversation, up to date while it is watched. Reconnects by itself.
import { ApiError, bodyOf, messageOf } from "./api.js";
import * as exact from "./exact-json.js";
import { readStream } from "./sse.js";

/** @import { Agent } from "./agent-rows.js" */
/** @import { Api } from "./api.js" */

const WAIT_MS = 1_000;
const A_PAGE = 1_000;
const MOST_PAGES = 20;

export class AgentsFeed {
  /** @type {Map<string, Agent>} */
  agents = new Map();
  problem = "";
  #turn = 0;
  #stopped = new AbortController();

  /**
   * @param {Api} api
   * @param {string} id of the conversation
   * @param {() => void} changed
   */
  constructor(api, id, changed) {
    this.api = api;
    this.id = id;
    this.changed = changed;
    this.#run();
  }

  stop = () => this.#stopped.abort();

  /**
   * What the mesh answered about an agent.
   * @param {Agent} agent
   */
  put(agent) {
    const turn = exact.number(agent.turn);
    if (turn < this.#turn) return;
    if (turn > this.#turn) {
      this.agents.clear();
      this.#turn = turn;
    }
    const [costUsd, subtreeCostUsd] = [agent.costUsd, agent.subtreeCostUsd].map((usd) => exact.number(usd ?? 0));
    this.agents.set(agent.agentId, { ...agent, turn, costUsd, subtreeCostUsd });
  }

  async #run() {
    while (!this.#stopped.signal.aborted) {
      this.problem = await this.#connection();
      if (this.#stopped.signal.aborted) return;
      this.changed();
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    }
  }

  /** Reads one connection to its end. Returns why it ended. */
  async #connection() {
    const cut = new AbortController();
    const signal = AbortSignal.any([cut.signal, this.#stopped.signal]);
    try {
      const response = await fetch(`/api/conversation/${encodeURIComponent(this.id)}/agents/changes`, {
        signal, cache: "no-store", headers: { Accept: "text/event-stream", ...this.api.headers() },
      });
      if (!response.headers.get("content-type")?.startsWith("text/event-stream")) await bodyOf(response);
      if (!response.body) return "The connection was closed.";
      return await readStream(response.body, cut, (events) => this.#takeAll(events));
    } catch (error) {
      return error instanceof ApiError ? messageOf(error) : "The connection was lost.";
    }
  }

  /** @param {{type: string, data: string}[]} events */
  async #takeAll(events) {
    for (const { type, data } of events) await this.#take(type, exact.parse(data));
    if (events.length) this.changed();
    return undefined;
  }

  /** @type {(type: string, data: any) => Promise<void>} */
  async #take(type, data) {
    if (type === "agent_state") this.put(data);
    if (type !== "snapshot") return;
    // What has ended by now is not in it.
    for (const agent of await this.#all()) this.put(agent);
    for (const agent of Object.values(data.agents)) this.put(/** @type {Agent} */ (agent));
    this.problem = "";
  }

  async #all() {
    /** @type {Agent[]} */
    const all = [];
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const last = all.at(-1);
      /** @type {Agent[]} */
      const found = Object.values(await this.api.agents(this.id, last ? `${last.createdAt}|${last.agentId}` : ""));
      all.push(...found);
      if (found.length < A_PAGE) break;
    }
    return all;
  }
}
