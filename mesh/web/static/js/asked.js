// What an approval asks, and who: approvals as turn.js has them. Pure.
import { visible } from "./exact-json.js";

const LONGEST = 4_000;

// The other agent that asks; empty: one of our own nodes does.
export const peerOf = ({ remote_agent_name: name }) => (name ? `agent ${visible(name)}` : "");

const formOf = (approval) => approval.remote_question?.form ?? "";

// An agent that asks in words may want a yes or no, or more.
export const isInWords = (approval) => approval.kind === "tool_call" && formOf(approval) === "text";

export const canEdit = (approval) => isCall(approval) && ["", "mesh"].includes(formOf(approval));

// Whether it is about one call that is to be made: one whose arguments are known.
export const isCall = (approval) => approval.kind === "tool_call" && !isInWords(approval);

// What the mesh says of it, without who asks, and of a call without the list of arguments: they stand beside it.
export function described(approval) {
  const { description = "", remote_agent_name: name, kind } = approval;
  const prefix = `Agent ${name} asks: `;
  const text = name && description.startsWith(prefix) ? description.slice(prefix.length) : description;
  const told = kind === "tool_call" || kind === "unknown_outcome" ? text.split(/\n {2}\S+ = /)[0] : text;
  return visible(told).slice(0, LONGEST);
}

// In a line, for those who do not see the card.
export function announced(approval) {
  const who = peerOf(approval) || "the agent";
  if (approval.kind === "question") return `Question of ${who}: ${described(approval).slice(0, 300)}`;
  if (approval.kind === "auth_required") return `Access token needed for ${peerOf(approval) || visible(approval.tool_name)}`;
  return `Approval needed: ${visible(approval.tool_name)}`;
}
