// @ts-check
// What a call would do: the files that would change, and their diff, unified or side by side. A long one is shown in
// part until a person asks for more; what was cut is asked for from the mesh.
import { messageOf } from "../api.js";
import { rowsOf, sideBySide, withoutHeaders } from "../diff.js";
import { Component, html } from "../html.js";
import { marked, markedLine } from "./marked.js";
import { count } from "./words.js";

/** @import { Pair, Row } from "../diff.js" */
/** @import { Preview as PreviewData } from "../turn.js" */

/**
 * @typedef {object} Props
 * @property {PreviewData} preview
 * @property {string} agent the other agent that says it, or ""
 * @property {(offset: number) => Promise<PreviewData>} more
 */
/** @typedef {{isSplit: boolean, shown: number, text: string, next: number | undefined, isCut: boolean, problem: string, isLoading: boolean}} State */

const SHOWN = 400;
const UNIFIED = ["number", "number", "sign", "line"];
const SPLIT = ["number", "sign", "line", "number", "sign", "line"];
const NO_FILE = ["", "absent"];
/** @type {Record<string, string>} */
const KIND = { "+": "added", "-": "removed", "@": "hunk", "▸": "about", "\\": "about" };

/** @extends {Component<Props, State>} */
export class Preview extends Component {
  /** @type {State} */
  state = {
    isSplit: false, shown: SHOWN, problem: "", isLoading: false,
    text: this.props.preview.text, next: this.props.preview.next_offset, isCut: Boolean(this.props.preview.cut),
  };

  #load = async () => {
    const { next } = this.state;
    if (next === undefined || this.state.isLoading) return;
    this.setState({ isLoading: true, problem: "" });
    try {
      const { text, cut = false, next_offset } = await this.props.more(next);
      const advances = next_offset !== undefined && next_offset > next;
      this.setState({ text: this.state.text + text, isCut: cut, next: advances ? next_offset : undefined, shown: Infinity });
    } catch (error) {
      this.setState({ problem: messageOf(error) });
    } finally {
      this.setState({ isLoading: false });
    }
  };

  render() {
    const { preview, agent } = this.props;
    const { isSplit, shown, text, problem } = this.state;
    const isDiff = preview.kind === "diff";
    const rows = withoutHeaders(rowsOf(text, isDiff), (preview.files ?? []).map(({ path }) => path));
    return html`
      <section class="preview" aria-label="What would change">
        <div class="arguments-head">
          <h4>${agent ? html`What would change, as ${agent} says` : "What would change"}</h4>
          ${isDiff && html`<button class="link" aria-pressed=${isSplit} onClick=${() => this.setState({ isSplit: !isSplit })}>${isSplit ? "Unified" : "Side by side"}</button>`}
        </div>
        ${this.#files()}
        <div class="diff" tabindex="0" role="group" aria-label=${isDiff ? "Diff" : "Preview"}>
          <table class=${isSplit ? "split" : "unified"}>
            <colgroup>${(isSplit ? SPLIT : UNIFIED).map((kind) => html`<col class=${kind} />`)}</colgroup><tbody>
            ${isSplit ? sideBySide(rows.slice(0, shown)).map(splitRow) : rows.slice(0, shown).map(unifiedRow)}
          </tbody></table>
        </div>
        ${shown < rows.length && html`<button class="link" onClick=${() => this.setState({ shown: Infinity })}>Show all ${count(rows.length, "line")}</button>`}
        ${problem && html`<p class="problem" role="alert">${problem}</p>`}
        ${this.#rest()}
      </section>
    `;
  }

  #files() {
    const { files = [] } = this.props.preview;
    return html`<ul class="files">${files.map(({ path, added = 0, removed = 0, before = "", after = "" }) => {
      const [hasBefore, hasAfter] = [before, after].map((state) => !NO_FILE.includes(state));
      if (before && before === after) return html`<li><code>${markedLine(path)}</code> <span class="badge">nothing would change</span></li>`;
      const what = hasAfter && !hasBefore ? "new" : hasBefore && !hasAfter ? "removed" : "";
      return html`<li><code>${markedLine(path)}</code> <span class="plus">+${added}</span> <span class="minus">−${removed}</span>${what && html` <span class="badge">${what}</span>`}</li>`;
    })}</ul>`;
  }

  #rest() {
    const { isCut, next, isLoading } = this.state;
    const { agent } = this.props;
    if (!isCut) return null;
    if (next === undefined) return html`<p class="hint">${agent ? `The rest was cut; ${agent} shows it.` : "The rest was cut, and cannot be shown here."}</p>`;
    return html`<button class="link" aria-disabled=${isLoading} onClick=${this.#load}>${isLoading ? "Loading …" : "Load the rest"}</button>`;
  }
}

/** @param {Row} row */
const unifiedRow = (row) => html`
  <tr class=${KIND[row.sign] ?? ""}>
    <td class="number">${row.old}</td><td class="number">${row.new}</td>
    <td class="sign">${row.sign}</td><td class="line">${marked(row.spans)}</td>
  </tr>
`;

/** @param {Pair} pair */
const splitRow = ({ left, right, whole }) =>
  whole
    ? html`<tr class=${KIND[whole.sign] ?? ""}><td class="number"></td><td class="sign"></td><td class="line" colspan="4">${marked(whole.spans)}</td></tr>`
    : html`<tr>${half(left, left?.old)}${half(right, right?.new)}</tr>`;

/** @type {(row: Row | undefined, number: number | undefined) => any} */
const half = (row, number) => html`
  <td class="number">${number}</td>
  <td class=${`sign ${kindOf(row)}`}>${row?.sign}</td>
  <td class=${`line ${kindOf(row)}`}>${row && marked(row.spans)}</td>
`;

/** @type {(row: Row | undefined) => string} */
const kindOf = (row) => (row ? (KIND[row.sign] ?? "") : "nothing");
