// @ts-check
// The requests of the page to its server. The access token is kept in this object only, so it is forgotten with the
// page.
import * as exact from "./exact-json.js";

/** @import { Choice } from "../approval-kinds.js" */

const RESPONSE_TIMEOUT_MS = 45_000;

/**
 * A decision about an approval: either a choice, or the text of an answer.
 * @typedef {{action: Exclude<Choice, "answer">, edited_args?: object, reason?: string,
 *   remember?: "conversation" | "always", rule?: object, until?: string} | {answer: string}} Decision
 */

/**
 * What a person does with an agent at work.
 * @typedef {{action: string, text?: string, reason?: string, changes?: Record<string, string>, restart?: boolean}} Step
 */

export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status of the response, or 0 if there was none
   */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/**
 * What to tell a person about something that was thrown.
 * @param {unknown} error
 */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

export class Api {
  token = "";
  user = "";

  headers() {
    /** @type {Record<string, string>} */
    const headers = {};
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (this.user) headers["X-User"] = this.user;
    return headers;
  }

  create = () => this.#post("/api/conversation", {});

  /** @type {(id: string, message: string, key: string) => Promise<any>} */
  send = (id, message, key) => this.#post("/api/send", { conversation_id: id, message }, { "Idempotency-Key": key });

  /** @type {(uuid: string, decision: Decision) => Promise<any>} */
  decide = (uuid, decision) => this.#post("/api/approve", { uuid, ...decision });

  /** @type {(uuid: string, offset: number) => Promise<any>} */
  preview = (uuid, offset) => this.#request(`/api/approval/${encodeURIComponent(uuid)}/preview?offset=${offset}`);

  /** @type {(id: string) => Promise<any>} */
  cancel = (id) => this.#post("/api/cancel", { conversation_id: id });

  /**
   * The agents of the newest turn, a page of them.
   * @type {(id: string, cursor: string) => Promise<any>}
   */
  agents = (id, cursor) => this.#request(`/api/conversation/${encodeURIComponent(id)}/agents${cursor && `?${new URLSearchParams({ cursor })}`}`);

  /** @type {(agent: string, step: Step, key: string) => Promise<any>} */
  intervene = (agent, step, key) => this.#post("/api/intervene", { agent_id: agent, ...step }, { "Idempotency-Key": key });

  /** @type {(id: string) => Promise<any>} */
  spend = (id) => this.#request(`/api/conversation/${encodeURIComponent(id)}/spend`);

  tree = () => this.#request("/api/tree");
  tools = () => this.#request("/api/tools");

  /** @type {(query: Record<string, string>) => Promise<any>} */
  list = (query) => this.#request(`/api/conversations?${new URLSearchParams(query)}`);

  /** @type {(path: string, body: object, headers?: Record<string, string>) => Promise<any>} */
  #post(path, body, headers = {}) {
    const sent = { "Content-Type": "application/json", ...headers };
    return this.#request(path, { method: "POST", body: JSON.stringify(body), headers: sent });
  }

  /** @type {(path: string, options?: RequestInit & {headers?: Record<string, string>}) => Promise<any>} */
  async #request(path, { headers = {}, ...options } = {}) {
    const signal = AbortSignal.timeout(RESPONSE_TIMEOUT_MS);
    let response;
    try {
      response = await fetch(path, { ...options, signal, headers: { ...headers, ...this.headers() }, cache: "no-store" });
    } catch {
      throw new ApiError("The web chat's server does not answer. Is it still running?");
    }
    return bodyOf(response);
  }
}

/**
 * The JSON of a response. Throws `ApiError` if it is none, or if the response is an error.
 * @param {Response} response
 * @returns {Promise<any>}
 */
export async function bodyOf(response) {
  let body;
  try {
    body = exact.parse(await response.text());
  } catch {
    throw new ApiError(`The server gave an answer that cannot be read (HTTP ${response.status}).`, response.status);
  }
  if (response.ok) return body;
  throw new ApiError(body.error ?? `The server refused (HTTP ${response.status}).`, response.status);
}

/** What a person does. The same once more, after its answer was lost, is the same act: the mesh acts once. */
export class Acts {
  /** @type {{what: string, key: string} | null} */
  #unanswered = null;

  /**
   * @template T
   * @param {unknown} what the act, with what it is about
   * @param {(key: string) => Promise<T>} ask sends the request with an Idempotency-Key
   */
  async once(what, ask) {
    const text = JSON.stringify(what);
    if (this.#unanswered?.what !== text) this.#unanswered = { what: text, key: newKey() };
    const answer = await ask(this.#unanswered.key);
    this.#unanswered = null;
    return answer;
  }
}

// The mesh acts once, however often a request with this key is repeated.
const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
