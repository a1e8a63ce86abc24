// @ts-check
// A conversation is the fold of its events, here as in the mesh. Nothing but the events counts. An event makes a new
// state, which takes the maps of its open turn over from the old one: that is not read any more. Journaled events have a `seq` and are applied once. Events of a turn that is not open change
// nothing but `seq`; but for those about what the store has lost.
import { applied, opened } from "./turn.js";

/** @import { MeshEvent, Turn } from "./turn.js" */

/**
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} sessionId
 * @property {string} agent
 * @property {number} seq of the last journaled event
 * @property {boolean} completed whether it takes no more messages
 * @property {Turn[]} turns
 */

/** @returns {Conversation} */
export const empty = (id = "") => ({ id, sessionId: "", agent: "", seq: 0, completed: false, turns: [] });

/** @type {(events: MeshEvent[], from?: Conversation) => Conversation} */
export const fold = (events, from = empty()) => events.reduce(apply, from);

/** @type {(conversation: Conversation, event: MeshEvent) => Conversation} */
export function apply(conversation, event) {
  if (event.seq && event.seq <= conversation.seq) return conversation;
  const next = event.seq ? { ...conversation, seq: event.seq } : conversation;
  switch (event.type) {
    case "conversation_created":
      return { ...next, id: event.conversation_id, sessionId: event.session_id ?? "", agent: event.agent ?? "" };
    case "user_message":
      return { ...next, turns: [...next.turns, opened(event)] };
    case "store_went_back":
      return { ...next, turns: next.turns.map((turn) => (turn.number === event.turn ? noted(turn, event) : turn)) };
    case "conversation_completed":
      return { ...next, completed: true };
    case "spend":
      return inTurn(next, { after: next.seq, ...event });
    default:
      return inTurn(next, event);
  }
}

/** @type {(conversation: Conversation, event: MeshEvent) => Conversation} */
function inTurn(conversation, event) {
  const turn = conversation.turns.at(-1);
  if (!turn || turn.number !== event.turn) return conversation;
  if (!isOpen(turn) && event.type !== "spend") return conversation; // what it spent may be told after its end
  const changed = applied(turn, event);
  return changed === turn ? conversation : { ...conversation, turns: [...conversation.turns.slice(0, -1), changed] };
}

/** @type {(turn: Turn, event: MeshEvent) => Turn} */
const noted = (turn, event) => ({ ...turn, loss: event.message });

/** @param {Turn | undefined} turn */
export const isOpen = (turn) => ["running", "waiting", "paused"].includes(turn?.status ?? "");
/** @param {Conversation} conversation */
export const lastTurn = (conversation) => conversation.turns.at(-1);
/** @param {Conversation} conversation */
export const title = (conversation) => conversation.turns[0]?.text ?? "";
