// The module that `mesh.web.approval_kinds` generates.
export type Choice = "approve" | "reject" | "retry" | "skip" | "answer";

/** A row of `mesh.core.approvals.APPROVAL_KINDS`. */
export interface ApprovalKind {
  choices: Choice[];
  takesText: boolean;
  isQuestion: boolean;
  needsToken: boolean;
  editsArguments: boolean;
  editsOutput: boolean;
  rejectEndsTurn: boolean;
  showsArguments: boolean;
  listsArguments: boolean;
  title: string;
  hint: string;
}

/** The kinds by name, each by the protocol of the agent that asks; `""` is one of our own nodes. */
export const APPROVAL_KINDS: Record<string, Record<string, ApprovalKind>>;
export const DEFAULT_KIND: string;
