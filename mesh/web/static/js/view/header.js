// @ts-check
// Which conversation this is, how it stands, and the buttons for everything else.
import { Component, html } from "../html.js";
import { title } from "../conversation.js";
import { visible } from "../exact-json.js";
import { pendingCount } from "../turn.js";
import { Icon } from "./icons.js";
import { TURN } from "./words.js";

/** @import { Connection } from "../chat.js" */
/** @import { Conversation } from "../conversation.js" */
/** @import { Turn } from "../turn.js" */

/**
 * @typedef {object} Props
 * @property {Conversation} conversation
 * @property {Turn} [turn]
 * @property {Connection} connection
 * @property {string} drawer
 * @property {(drawer: string) => void} toggle
 * @property {() => void} identify
 * @property {boolean} hasToken
 */


/** @param {Props} props */
export function Header({ conversation, turn, connection, drawer, toggle, identify, hasToken }) {
  const standing = pendingCount(turn) ? "waiting" : (turn?.status ?? "");
  const status = conversation.completed ? "closed" : (TURN[standing] ?? "");
  return html`
    <header class="top">
      <button class="icon-button only-narrow" onClick=${() => toggle("list")} aria-label="Conversations" aria-expanded=${drawer === "list"} aria-controls="sidebar">
        <${Icon} name="menu" />
      </button>
      <div class="titles">
        <h1>${visible(title(conversation)).slice(0, 200) || "New conversation"}</h1>
        ${conversation.sessionId && html`
          <p class="ids">session <code>${visible(conversation.sessionId)}</code> <span class="wide">· conversation <code>${visible(conversation.id)}</code></span></p>
        `}
      </div>
      ${status && html`<span class=${`badge ${standing}`}>${status}</span>`}
      <span class=${`link-state ${connection.state}`} title=${CONNECTION[connection.state]} aria-label=${CONNECTION[connection.state]} role="img"></span>
      ${conversation.id && html`
        <button key="agents" class=${`icon-button ${drawer === "agents" ? "on" : ""}`} onClick=${() => toggle("agents")} aria-label="Agents at work" title="Agents at work" aria-expanded=${drawer === "agents"}>
          <${Icon} name="agent" />
        </button>
      `}
      <button key="agent" class="icon-button only-medium" onClick=${() => toggle("agent")} aria-label="Agent and tools" aria-expanded=${drawer === "agent"} aria-controls="agent">
        <${Icon} name="tree" />
      </button>
      <button key="identity" class=${`icon-button ${hasToken ? "on" : ""}`} onClick=${identify} aria-label="Access token and name" title="Access token and name"><${Icon} name="person" /></button>
      <${ThemeButton} />
    </header>
  `;
}

/** @type {Record<Connection["state"], string>} */
const CONNECTION = {
  idle: "Not watching", connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", refused: "Refused",
};

class ThemeButton extends Component {
  #toggle = () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    this.forceUpdate();
  };

  render() {
    const label = isDark() ? "Light colours" : "Dark colours";
    return html`
      <button class="icon-button" onClick=${this.#toggle} aria-label=${label} title=${label}><${Icon} name=${isDark() ? "sun" : "moon"} /></button>
    `;
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
