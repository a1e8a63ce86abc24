// @ts-check
// A bar for each limit of the turn, and of the runs in it that have limits of their own: what is spent, what is
// unsettled, because the answer of a model was lost, and what is reserved for model calls in flight.
import { html } from "../html.js";
import { visible } from "../exact-json.js";
import { isOpen } from "../conversation.js";
import { byPlace } from "../place.js";
import { isAtWork, nameAt, statusAt } from "../tree-status.js";
import { amount, limitName } from "./words.js";

/** @import { Spend, Turn } from "../turn.js" */

const MOST_SCOPES = 8;
const PARTS = /** @type {const} */ (["spent", "unsettled", "reserved"]);

/** @param {{turn?: Turn, names: Record<string, string>}} props */
export function Limits({ turn, names }) {
  const scopes = turn ? shownScopes(turn) : [];
  if (!turn || !scopes.length) return null;
  return html`
    <h2>Limits</h2>
    <div class="limits">
      ${scopes.map((place) => html`<${Scope} key=${place} name=${place === "0" ? "This turn" : nameAt(turn, names, place)} spend=${turn.spend.get(place)} />`)}
    </div>
  `;
}

/**
 * Limits of a run are of interest while it runs, those of the turn to its end and after. Of many runs, those that began
 * first are shown.
 * @param {Turn} turn
 */
function shownScopes(turn) {
  const shown = Object.keys(turn.spend.get("0")?.limits ?? {}).length ? ["0"] : [];
  if (!isOpen(turn)) return shown;
  for (const place of turn.bounded) {
    if (shown.length >= MOST_SCOPES) break;
    if (place !== "0" && isAtWork(statusAt(turn, place))) shown.push(place);
  }
  return shown.sort(byPlace);
}

/** @param {{name: string, spend: Spend}} props */
const Scope = ({ name, spend }) => html`
  <section class="scope" aria-label=${`Limits: ${visible(name)}`}>
    <h3>${visible(name)}</h3>
    ${Object.keys(spend.limits).map((key) => html`<${Bar} key=${key} name=${key} spend=${spend} />`)}
  </section>
`;

/** @param {{name: string, spend: Spend}} props */
function Bar({ name, spend }) {
  const limit = spend.limits[name];
  const amounts = PARTS.map((part) => ({ part, number: spend[part][name] ?? 0 }));
  const used = amounts.reduce((sum, { number }) => sum + number, 0);
  const more = amounts.slice(1).filter(({ number }) => number > 0).map(({ part, number }) => `${amount(name, number)} ${part}`);
  const spent = `${amount(name, amounts[0].number)} of ${amount(name, limit)}`;
  const isFull = amounts[0].number + amounts[1].number >= limit; // what is reserved may be given back
  const whole = Math.max(limit, used) || 1;
  return html`
    <div class=${`limit ${isFull ? "full" : ""}`} role="meter" aria-label=${limitName(name)} aria-valuemin="0" aria-valuemax=${limit}
      aria-valuenow=${Math.min(used, limit)} aria-valuetext=${[spent, ...more].join(", ")}>
      <p class="limit-line"><span>${limitName(name)}</span><span>${spent}</span></p>
      <div class="bar">
        ${amounts.map(({ part, number }) => html`<i key=${part} class=${part} style=${{ width: `${(100 * number) / whole}%` }}></i>`)}
      </div>
      ${more.length > 0 && html`<p class="limit-more">${more.join(" · ")}</p>`}
    </div>
  `;
}
