// @ts-check
// What an approval asks, and who asks it. Pure. What may be decided about it is in the table of the server
// (`mesh.core.approvals`); this page has no rules of its own.
import { APPROVAL_KINDS, DEFAULT_KIND } from "../approval-kinds.js";
import { visible } from "./exact-json.js";

/** @import { ApprovalKind } from "../approval-kinds.js" */
/** @import { Approval } from "./turn.js" */

const MAX_DESCRIPTION = 4_000;
const MAX_ANNOUNCED = 300;

/**
 * The kind of an approval, as far as the agent that asks can take its decisions. A newer mesh may know kinds
 * that this page does not.
 * @param {Approval} approval
 * @returns {ApprovalKind}
 */
export function kindOf(approval) {
  const byProtocol = APPROVAL_KINDS[approval.kind] ?? APPROVAL_KINDS[DEFAULT_KIND];
  return byProtocol[approval.remote_question?.form ?? ""] ?? byProtocol[""];
}

/**
 * The other agent that asks, or "" if one of our own nodes does.
 * @param {Approval} approval
 */
export const remoteAgentOf = ({ remote_agent_name: name }) => (name ? `agent ${visible(name)}` : "");

/**
 * Who asks on whose behalf: "search, called by main". `node` is the name of the node that waits, if the approval
 * does not say it. `which` tells a started agent from others of its name.
 * @type {(approval: Approval, node: string, which?: string) => string}
 */
export function askerOf({ asked_by, agent_path = [] }, node, which = "") {
  const name = asked_by || node;
  const [agent, ...callers] = agent_path.toReversed();
  const self = !agent || agent === name ? name : `${name} of ${agent}`;
  return [which ? `${self} (${which})` : self, ...callers.map((caller) => `called by ${caller}`)].map(visible).join(", ");
}

/**
 * The description without who asks and without a list of arguments: both are shown beside it.
 * @param {Approval} approval
 */
export function descriptionOf(approval) {
  const { description = "", remote_agent_name: name } = approval;
  const prefix = `Agent ${name} asks: `;
  const text = name && description.startsWith(prefix) ? description.slice(prefix.length) : description;
  const told = kindOf(approval).listsArguments ? text.split(/\n {2}\S+ = /)[0] : text;
  return visible(told).slice(0, MAX_DESCRIPTION);
}

/**
 * The approval in a line, for people who do not see its card.
 * @param {Approval} approval
 */
export function announcementOf(approval) {
  const kind = kindOf(approval);
  const agent = remoteAgentOf(approval);
  if (kind.isQuestion) return `Question of ${agent || "the agent"}: ${descriptionOf(approval).slice(0, MAX_ANNOUNCED)}`;
  if (kind.needsToken) return `Access token needed for ${agent || visible(approval.tool_name)}`;
  return `${kind.title}: ${visible(approval.tool_name)}`;
}
