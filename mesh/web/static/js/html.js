// @ts-check
// Preact draws the page from templates. Text in them becomes text nodes, never markup.
import { Component, createRef, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { Component, createRef, render };
