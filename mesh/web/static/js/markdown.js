// @ts-check
// The text of a model as safe markup: a fragment without scripts, styles, forms, anything that is loaded from
// another origin, and links to other schemes than http, https and mailto.
import DOMPurify from "../vendor/purify.js";
import { Marked } from "../vendor/marked.js";

const MAX_CHARACTERS = 100_000; // above that it is shown as plain text: laying it out would hold up the page

// Raw HTML is shown as it was written. An image becomes a link: loading it would tell its server that the text is
// read.
const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
  },
});

/** @type {import("dompurify").Config & {RETURN_DOM_FRAGMENT: true}} */
const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
};

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A" || !node.hasAttribute("href")) return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

/**
 * @param {string} text
 * @returns {DocumentFragment}
 */
export function fragmentOf(text) {
  if (text.length > MAX_CHARACTERS) return plain(text);
  return purify.sanitize(marked.parse(text, { async: false }), ALLOWED);
}

/** @param {string} text */
function plain(text) {
  const fragment = document.createDocumentFragment();
  const pre = document.createElement("pre");
  pre.textContent = text;
  fragment.append(pre);
  return fragment;
}

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
/** @param {string} text */
const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => ENTITIES[c]);
