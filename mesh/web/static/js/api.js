// What the page asks of its server. The access token lives in this object and nowhere else: it is gone with
// the page.
import * as exact from "./exact-json.js";

const PATIENCE_MS = 45_000;

export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export class Api {
  token = "";
  user = "";

  headers() {
    const headers = {};
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (this.user) headers["X-User"] = this.user;
    return headers;
  }

  create = () => this.#post("/api/conversation", {});
  send = (id, message, key) => this.#post("/api/send", { conversation_id: id, message }, { "Idempotency-Key": key });
  approve = (uuid, decision) => this.#post("/api/approve", { uuid, ...decision });
  cancel = (id) => this.#post("/api/cancel", { conversation_id: id });
  tree = () => this.#ask("/api/tree");
  tools = () => this.#ask("/api/tools");
  list = (query) => this.#ask(`/api/conversations?${new URLSearchParams(query)}`);

  #post(path, body, headers = {}) {
    const sent = { "Content-Type": "application/json", ...headers };
    return this.#ask(path, { method: "POST", body: JSON.stringify(body), headers: sent });
  }

  async #ask(path, { headers = {}, ...options } = {}) {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    let response;
    try {
      response = await fetch(path, { ...options, signal, headers: { ...headers, ...this.headers() }, cache: "no-store" });
    } catch {
      throw new Problem("The web chat's server does not answer. Is it still running?");
    }
    return answered(response);
  }
}

export async function answered(response) {
  let body;
  try {
    body = exact.parse(await response.text());
  } catch {
    throw new Problem(`The server gave an answer that cannot be read (HTTP ${response.status}).`, response.status);
  }
  if (response.ok) return body;
  throw new Problem(body.error ?? `The server refused (HTTP ${response.status}).`, response.status);
}

// A key for one act of a person: repeating the request does not repeat the act.
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
