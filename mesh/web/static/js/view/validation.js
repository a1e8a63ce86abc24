// @ts-check
// What a validator says about an answer: one line. What it objects to, and what an agent did for it, unfolds.
import { visible } from "../exact-json.js";
import { html } from "../html.js";
import { Icon } from "./icons.js";
import { LongText } from "./long-text.js";
import { Decided } from "./tool.js";
import { verdict } from "./words.js";

/** @import { Approval, ValidationItem } from "../turn.js" */

/**
 * @typedef {object} ValidationProps
 * @property {ValidationItem} item
 * @property {Approval[]} decided about it
 * @property {string} name of the validator
 * @property {boolean} isOpen whether what happens in it is shown
 * @property {boolean} isWaiting for a person
 * @property {unknown} [children] what an agent did
 */

/** @param {ValidationProps} props */
export function Validation({ item, decided, name, isOpen, isWaiting, children }) {
  const phase = phaseOf(item, isWaiting, isOpen);
  const { valid, feedback } = item;
  const line = html`
    <span class=${`dot ${phase}`}></span>
    <${Icon} name=${iconOf(item)} />
    <strong>${visible(name)}</strong>
    <span class="gist">${valid ? "" : visible(feedback).slice(0, 200)}</span>
    <span class="phase">${[verdict(item, phase), run(item)].filter(Boolean).join(", ")}</span>
  `;
  if (!children && !feedback && !decided.length) return html`<p class=${`validation ${phase}`}>${line}</p>`;
  return html`
    <details class=${`tool validation ${phase}`} open=${isOpen}>
      <summary>${line}<${Icon} name="chevron" /></summary>
      <div class="fold">
        ${decided.map((one) => html`<${Decided} approval=${one} key=${one.uuid} />`)}
        ${children}
        ${feedback && html`<${LongText} text=${visible(feedback)} label="Feedback" />`}
      </div>
    </details>
  `;
}

/** @type {(item: ValidationItem, isWaiting: boolean, isOpen: boolean) => string} */
function phaseOf({ valid, isRound }, isWaiting, isOpen) {
  if (valid === undefined) return isWaiting ? "waiting" : isOpen ? "running" : "stopped";
  return valid ? "done" : isRound ? "skipped" : "failed";
}

/** @param {ValidationItem} item */
function iconOf({ valid, validator }) {
  if (valid === undefined) return validator === "person" ? "person" : "agent";
  return valid ? "check" : "cross";
}

/** @param {ValidationItem} item */
const run = ({ number, of, isRound }) => (number ? `${isRound ? "round" : "run"} ${number} of ${of}` : "");
