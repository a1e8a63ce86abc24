// @ts-check
// The conversations: a new one, a search, the list.
import { html } from "../html.js";
import { visible } from "../exact-json.js";
import { Icon } from "./icons.js";
import { ago, CONVERSATION } from "./words.js";

/** @import { Directory, Entry as EntryOf, List } from "../directory.js" */

/**
 * @typedef {object} Props
 * @property {List} list
 * @property {Directory} directory
 * @property {string} current the id of the conversation that is shown
 * @property {(id: string) => void} open
 * @property {boolean} isOpen
 * @property {() => void} close
 */

/** @param {Props} props */
export function Sidebar({ list, directory, current, open, isOpen, close }) {
  return html`
    <aside class=${`sidebar ${isOpen ? "open" : ""}`} id="sidebar" aria-label="Conversations">
      <div class="brand">
        <img src="/static/icon.svg" alt="" width="26" height="26" /><strong>mesh</strong>
        <button class="icon-button only-narrow" onClick=${close} aria-label="Close the list"><${Icon} name="close" /></button>
      </div>
      <button class="new" onClick=${() => open("")}><${Icon} name="plus" />New conversation</button>
      <label class="search">
        <${Icon} name="search" /><span class="hidden">Search conversations</span>
        <input type="search" placeholder="Search" maxlength="200" value=${list.words} onInput=${(/** @type {{target: HTMLInputElement}} */ event) => directory.search(event.target.value)} />
      </label>
      <${Filter} list=${list} show=${(/** @type {string} */ status) => directory.show(status)} />
      <nav class="entries" aria-label="Conversations">
        ${list.entries.map((entry) => html`<${Entry} key=${entry.id} entry=${entry} isCurrent=${entry.id === current} open=${open} />`)}
        ${list.problem && html`<p class="problem">${list.problem}</p>`}
        ${!list.entries.length && !list.problem && html`<p class="faint">${list.loading ? "Loading …" : nothing(list)}</p>`}
        ${!list.isWhole && html`<p class="faint">There may be more: search with more words.</p>`}
        ${list.isIncomplete && html`<p class="faint">Some are missing: a keeper is away.</p>`}
        ${list.cursor && !list.words && html`<button class="link" onClick=${directory.more}>Older conversations</button>`}
      </nav>
    </aside>
  `;
}

/** @param {List} list */
const nothing = (list) => (list.words || list.status ? "Nothing found." : "None yet.");

/** @param {{list: List, show: (status: string) => void}} props */
function Filter({ list, show }) {
  const waiting = list.summary?.waiting_approval ?? 0;
  const choice = (/** @type {string} */ status, /** @type {unknown} */ text) => html`
    <button aria-pressed=${list.status === status && !list.words} onClick=${() => show(status)}>${text}</button>
  `;
  return html`
    <div class="filter" role="group" aria-label="Which conversations">
      ${choice("", "All")}
      ${choice("waiting_approval", html`Waiting${waiting > 0 && html` <span class="count">${waiting}</span>`}`)}
    </div>
  `;
}

/** @param {{entry: EntryOf, isCurrent: boolean, open: (id: string) => void}} props */
function Entry({ entry, isCurrent, open }) {
  const status = CONVERSATION[entry.status];
  return html`
    <a class=${`entry ${entry.status}`} href=${`#${encodeURIComponent(entry.id)}`} aria-current=${isCurrent ? "page" : undefined}
      onClick=${(/** @type {MouseEvent} */ event) => (event.ctrlKey || event.metaKey ? undefined : (event.preventDefault(), open(entry.id)))}>
      <span class="entry-title">${visible(entry.title || "Empty conversation")}</span>
      <span class="entry-line">
        <span>${ago(entry.updated_at)}</span><span class="mono">${entry.id.slice(0, 8)}</span>
        ${status && html`<span class=${`badge ${entry.status}`}>${status}</span>`}
      </span>
    </a>
  `;
}
