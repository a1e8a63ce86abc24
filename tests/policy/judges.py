"""A custom function of a policy, as an installed module has it."""

from mesh.policy.custom import PolicyCall, PolicyContext, Verdict, allow, deny

SEEN: list[PolicyContext] = []


async def judge(call: PolicyCall, context: PolicyContext) -> Verdict | None:
    """Denies the number 13, allows small ones, and leaves the others to the rules."""
    SEEN.append(context)
    n = call.arguments.get("n", 0)
    return deny("Not that one.") if n == 13 else allow() if n < 10 else None
