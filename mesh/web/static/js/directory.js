// The list of conversations: newest first, by status, or those that a search finds. It asks anew when it is
// told that something happened, and shows the answer to the last question only.
const PER_PAGE = "50";
const SETTLE_MS = 250;

export class Directory {
  state = { entries: [], summary: null, cursor: "", status: "", words: "", loading: true, problem: "", isWhole: true };
  #timer = 0;
  #asked = 0;

  constructor(api, changed) {
    Object.assign(this, { api, changed });
  }

  show(status) {
    this.#set({ status, words: "", loading: true });
    return this.refresh();
  }

  search(words) {
    this.#set({ words, status: "", loading: true });
    this.refreshSoon();
  }

  refreshSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), SETTLE_MS);
  }

  refresh = () => this.#load("");
  more = () => this.#load(this.state.cursor);

  async #load(cursor) {
    const asked = (this.#asked += 1);
    const { status, words } = this.state;
    const query = words.trim() ? { q: words.trim() } : { limit: PER_PAGE, ...(status && { status }), ...(cursor && { cursor }) };
    try {
      const page = await this.api.list(query);
      if (asked !== this.#asked) return;
      const entries = cursor ? [...this.state.entries, ...page.conversations] : page.conversations;
      const summary = page.summary ?? this.state.summary;
      this.#set({ entries, summary, cursor: page.next_cursor ?? "", isWhole: page.searched_all ?? true, loading: false, problem: "" });
    } catch (problem) {
      if (asked === this.#asked) this.#set({ problem: problem.message, loading: false });
    }
  }

  #set(change) {
    this.state = { ...this.state, ...change };
    this.changed();
  }
}
