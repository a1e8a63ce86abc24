"""Calls of the tools of a config, and what its policy decides about them, for the commands that ask."""

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from mesh.cli.shared import FAILED, exit_with

if TYPE_CHECKING:
    from mesh.config.model import Config
    from mesh.mcp.port import Tool
    from mesh.policy.custom import CustomPolicy
    from mesh.policy.explain import Explanation
    from mesh.policy.grants import Grant
    from mesh.policy.policy_call import PolicyCall
    from mesh.tree.plan import PlannedNode

BUILT_IN = "built_in"


class NoSuchCall(Exception):
    """No node of the config makes such a call. The message says why."""


class Callables:
    """All that the nodes of a config call. Its MCP servers are started if one of the tools that are ``asked``
    about may be theirs, to learn what they say about themselves."""

    def __init__(self, config: "Config", asked: Collection[str]) -> None:
        from mesh.tree.agent_call import USE_AGENT
        from mesh.tree.calls_for_policies import callers_of
        from mesh.tree.inventory import inventory

        self._config = config
        self._tools: dict[str, Tool] = {}
        self._rows = {row["name"]: row for row in inventory(config, [])}
        if any(name not in self._rows and name != USE_AGENT for name in asked):
            self._tools = _started(config)
            shown = [tool.shown() for tool in self._tools.values()]
            self._rows |= {row["name"]: row for row in inventory(config, shown)}
        self._callers = [*callers_of(config)]

    def is_built_in(self, name: str) -> bool:
        """Whether it has no effect outside of the turn, so that no rule is asked."""
        return name in self._rows and self._rows[name]["source"] == BUILT_IN

    def node_at(self, path: str) -> str | None:
        """The name of the node at a node path."""
        return next((planned.node.name for _, planned in self._callers if planned.path == path), None)

    def call(self, name: str, arguments: dict[str, Any], node: str | None) -> "PolicyCall":
        """The call of a tool by a node, or by the first that may. Raises `NoSuchCall`."""
        from mesh.tree.agent_call import USE_AGENT
        from mesh.tree.calls_for_policies import agent_call, tool_call

        if name == USE_AGENT:
            return self._by_use_agent(arguments, node)
        caller = self._caller(name, node)
        agent, planned = next((a, p) for a, p in self._callers if p.node.name == caller)
        inline = _is_inline(planned)
        if name in self._tools:
            return tool_call(agent, caller, self._tools[name], arguments, inline=inline)
        row = self._rows[name]
        kind, destructive = row["source"], row["destructiveHint"]
        return agent_call(kind, agent, caller, name, arguments, destructive=destructive, inline=inline)

    def _by_use_agent(self, arguments: dict[str, Any], node: str | None) -> "PolicyCall":
        """The call of the agent that ``use_agent`` names, by that agent's name, as in
        `mesh.tree.agent_call`."""
        from mesh.tree.agent_call import USE_AGENT
        from mesh.tree.calls_for_policies import agent_call

        offering = [(a, p) for a, p in self._callers if p.node.offer_agents == USE_AGENT]
        offering = [(a, p) for a, p in offering if node in (None, p.node.name)]
        if not offering:
            who = "no node calls" if node is None else f"{node[:128]!r} does not call"
            raise NoSuchCall(f"{who} agents by {USE_AGENT}")
        name = str(arguments.get("agent"))
        named = {each.name: found for found in reversed(offering) for each in found[1].node.agents}
        if name not in named:
            known = ", ".join(sorted(named))
            raise NoSuchCall(f'{USE_AGENT} calls no agent {name[:128]!r}; "agent" is one of: {known}')
        (agent, planned), destructive = named[name], self._config.callable_agents[name].destructive
        by, inline = planned.node.name, _is_inline(planned)
        return agent_call("agent", agent, by, name, arguments, destructive=destructive, inline=inline)

    def _caller(self, name: str, node: str | None) -> str:
        if name not in self._rows:
            known = ", ".join(sorted(self._rows)) or "none"
            raise NoSuchCall(f"there is no tool {name[:128]!r}; there are: {known}")
        if self.is_built_in(name):
            raise NoSuchCall(f"{name} is built in: it has no effect outside of the turn, so no rule is asked")
        nodes: list[str] = self._rows[name]["nodes"]
        if not nodes:
            raise NoSuchCall(f"no node may call {name}")
        if node is not None and node not in nodes:
            by = ", ".join(nodes)
            raise NoSuchCall(f"{node[:128]!r} does not call {name}; it is called by: {by}")
        return node or nodes[0]


class Explainer:
    """What is decided about calls: by the rules, by what is remembered, by the custom function.
    Used in an ``async with`` statement."""

    def __init__(self, config: "Config") -> None:
        from mesh.config.custom_policy import custom_of
        from mesh.config.data_dirs import data_dirs_of
        from mesh.store.chosen import store_of

        self._config = config
        self._store = store_of(config, data_dirs_of([config], os.environ)[0])
        self._custom: CustomPolicy | None = custom_of(config)

    async def __aenter__(self) -> "Explainer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def explained(self, call: "PolicyCall", remembered: "Sequence[Grant]" = ()) -> "Explanation":
        """The verdict about a call, with the reasons. ``remembered`` counts beside what is for good."""
        from datetime import UTC, datetime

        from mesh.config.node_policies import policy_of
        from mesh.policy.call_command import command_of_call
        from mesh.policy.custom import PolicyContext, verdict_after_custom
        from mesh.policy.explain import after_custom, explained
        from mesh.policy.grants import in_force

        parsed = await command_of_call(call)
        kept = [*remembered, *await self._store.grants.grants(call.agent)]
        grants = in_force(kept, call.agent, datetime.now(UTC))
        found = explained(policy_of(self._config, call.node), call, grants, parsed)
        context = PolicyContext(verdict=found.verdict, command=parsed, agent_path=(call.agent,))
        return after_custom(found, await verdict_after_custom(self._custom, call, context))


def deciding_line(config: "Config", found: "Explanation") -> str:
    """Where the rule stands that decided, as ``file:line``; empty if it is none of the config."""
    from mesh.policy.custom import CUSTOM

    if found.verdict.rule == CUSTOM:
        return config.location("policy", CUSTOM).partition(": ")[0]
    lines = lines_of_rules(config)
    return next((lines[n.owner, n.index] for n in found.notes if n.rule == found.verdict.rule), "")


def lines_of_rules(config: "Config") -> dict[tuple[str, int], str]:
    """``file:line`` of each rule, by the node that owns it and its place there."""
    from mesh.config.node_policies import rules_of

    return {
        (owner, int(loc[-1])): config.location(*loc).partition(": ")[0] for loc, owner, _ in rules_of(config)
    }


def _started(config: "Config") -> "dict[str, Tool]":
    import asyncio
    import logging

    from mesh.cli.tools import listed_tools
    from mesh.tree.machine_needs import missing_programs

    logging.getLogger("mesh").addHandler(logging.NullHandler())  # problems are raised as errors
    if found := [*missing_programs(config)]:
        exit_with(found, FAILED)
    listed, _ = asyncio.run(listed_tools(config))
    return {tool.name: tool for tool in listed}


def _is_inline(planned: "PlannedNode") -> bool:
    """Whether destructive calls of a node run at once, in a turn that begins with its agent."""
    rule = planned.approvals
    return rule.at_once if rule.asks is None else not rule.asks
