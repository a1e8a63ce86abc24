// @ts-check
// The list of conversations: newest first, by status, or those that a search finds. It is loaded again when
// something happened. Responses may overtake each other, so only the one to the last request is shown.
import { messageOf } from "./api.js";

/** @import { Api } from "./api.js" */

/** @typedef {{id: string, title?: string, status: string, updated_at: string}} Entry */

/**
 * @typedef {object} List
 * @property {Entry[]} entries
 * @property {Record<string, number> | null} summary
 * @property {string} cursor
 * @property {string} status
 * @property {string} words
 * @property {boolean} loading
 * @property {string} problem
 * @property {boolean} isWhole
 * @property {boolean} isIncomplete
 */

const PER_PAGE = "50";
const DEBOUNCE_MS = 250;

export class Directory {
  /** @type {List} */
  state = { entries: [], summary: null, cursor: "", status: "", words: "", loading: true, problem: "", isWhole: true, isIncomplete: false };
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #asked = 0;

  /**
   * @param {Api} api
   * @param {() => void} changed
   */
  constructor(api, changed) {
    this.api = api;
    this.changed = changed;
  }

  /** @param {string} status */
  show(status) {
    this.#set({ status, words: "", loading: true });
    return this.refresh();
  }

  /** @param {string} words */
  search(words) {
    this.#set({ words, status: "", loading: true });
    this.refreshSoon();
  }

  refreshSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), DEBOUNCE_MS);
  }

  refresh = () => this.#load("");
  more = () => this.#load(this.state.cursor);

  /** @param {string} cursor */
  async #load(cursor) {
    const asked = (this.#asked += 1);
    const { status, words } = this.state;
    /** @type {Record<string, string>} */
    const query = words.trim() ? { q: words.trim() } : { limit: PER_PAGE, ...(status && { status }), ...(cursor && { cursor }) };
    try {
      const page = await this.api.list(query);
      if (asked !== this.#asked) return;
      const entries = cursor ? [...this.state.entries, ...page.conversations] : page.conversations;
      const summary = page.summary ?? this.state.summary;
      // What was missing in an earlier page still is.
      const isIncomplete = Boolean(page.incomplete) || (Boolean(cursor) && this.state.isIncomplete);
      this.#set({ entries, summary, cursor: page.next_cursor ?? "", isWhole: page.searched_all ?? true, isIncomplete, loading: false, problem: "" });
    } catch (error) {
      if (asked === this.#asked) this.#set({ problem: messageOf(error), loading: false });
    }
  }

  /** @param {Partial<List>} change */
  #set(change) {
    this.state = { ...this.state, ...change };
    this.changed();
  }
}
