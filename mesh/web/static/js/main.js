// @ts-check
// Connects the state of the page with its views.
import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { Directory } from "./directory.js";
import { html, render } from "./html.js";
import { App } from "./view/app.js";

const SUSPEND_AFTER_MS = 60_000;
const REFRESH_MS = 20_000;

const api = new Api();
const root = /** @type {HTMLElement} */ (document.getElementById("app"));
const directory = new Directory(api, draw);
const chat = new Chat(api, { changed: draw, listChanged: () => directory.refreshSoon(), opened: remember });

let isDrawing = false;
function draw() {
  if (isDrawing) return;
  isDrawing = true;
  const now = () => {
    isDrawing = false;
    render(html`<${App} chat=${chat} directory=${directory} state=${chat.state} list=${directory.state} />`, root);
  };
  // A hidden page gets no animation frames, but its title has to show what happens.
  if (document.hidden) setTimeout(now, 100);
  else requestAnimationFrame(now);
}

// The address names the conversation: a reload, a bookmark and the back button lead to it.
const addressed = () => decodeURIComponent(location.hash.slice(1));
/** @param {string} id */
function remember(id) {
  if (addressed() !== id) history.pushState(null, "", id ? `#${encodeURIComponent(id)}` : location.pathname);
}
function follow() {
  if (addressed() !== chat.state.conversation.id) chat.open(addressed());
}
addEventListener("popstate", follow);
addEventListener("hashchange", follow);

/** @type {ReturnType<typeof setTimeout> | undefined} */
let suspending;
document.addEventListener("visibilitychange", () => {
  clearTimeout(suspending);
  if (document.hidden) suspending = setTimeout(() => chat.suspend(), SUSPEND_AFTER_MS);
  else {
    chat.resume();
    directory.refresh();
  }
});
addEventListener("online", () => chat.retryNow());
setInterval(() => document.hidden || directory.refresh(), REFRESH_MS);

chat.open(addressed());
chat.loadAgent();
directory.refresh();
