// A conversation is fold(events), here as in the mesh. Pure: an event gives a new state, the old one stays.
//
// {id, sessionId, agent, seq, finished, turns: [turn]} - for turns see turn.js. Journaled events have a `seq`
// and are applied once; events of a turn that is not open change nothing but `seq`.
import { applied, opened } from "./turn.js";

export const empty = (id = "") => ({ id, sessionId: "", agent: "", seq: 0, finished: false, turns: [] });

export const fold = (events, from = empty()) => events.reduce(apply, from);

export function apply(conversation, event) {
  if (event.seq && event.seq <= conversation.seq) return conversation;
  const next = event.seq ? { ...conversation, seq: event.seq } : conversation;
  switch (event.type) {
    case "conversation_created":
      return { ...next, id: event.conversation_id, sessionId: event.session_id ?? "", agent: event.agent ?? "" };
    case "user_message":
      return { ...next, turns: [...next.turns, opened(event)] };
    case "conversation_completed":
      return { ...next, finished: true };
    default:
      return inTurn(next, event);
  }
}

function inTurn(conversation, event) {
  const turn = conversation.turns.at(-1);
  if (!turn || turn.number !== event.turn || !isOpen(turn)) return conversation;
  const changed = applied(turn, event);
  return changed === turn ? conversation : { ...conversation, turns: [...conversation.turns.slice(0, -1), changed] };
}

export const isOpen = (turn) => turn?.status === "running" || turn?.status === "waiting";
export const lastTurn = (conversation) => conversation.turns.at(-1);
export const title = (conversation) => conversation.turns[0]?.text ?? "";
