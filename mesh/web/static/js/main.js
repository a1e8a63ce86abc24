// @ts-check
// Puts the parts together: what the page knows, and what it shows.
import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { Directory } from "./directory.js";
import { html, render } from "./html.js";
import { App } from "./view/app.js";

const REST_AFTER_MS = 60_000;
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
  // A hidden page is not painted: its title still tells what happens.
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
let rest;
document.addEventListener("visibilitychange", () => {
  clearTimeout(rest);
  if (document.hidden) rest = setTimeout(() => chat.rest(), REST_AFTER_MS);
  else {
    chat.wake();
    directory.refresh();
  }
});
addEventListener("online", () => chat.hurry());
setInterval(() => document.hidden || directory.refresh(), REFRESH_MS);

chat.open(addressed());
chat.loadAgent();
directory.refresh();
