"""What a policy decides about the message to another agent, before that agent hears of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from mesh.core.events import AnyEvent, ApprovalRequired, ToolIntent, ToolResult
from tests.a2a.server.test_chain import Person, chain, setting
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says

PRODUCTION = {
    "name": "prod",
    "tools": ["a2a_deployer"],
    "args": {"message": "re:(?i)production"},
    "decide": "ask",
    "remember": "none",
    "say": "A person deploys to production.",
}
REMOVALS = {
    "name": "removals",
    "tools": ["a2a_*"],
    "args": {"message": "re:(?i)^remove"},
    "decide": "deny",
    "say": "Nothing is removed by agents.",
}


def sends(message: str) -> Any:
    return calls(("a2a_deployer", {"message": message}))


@contextmanager
def deploying(*messages: str, **more: Any) -> Iterator[tuple[LiveMesh, LiveMesh]]:
    """An agent that sends these messages to another one, and that agent."""

    def top(url: str) -> str:
        rules = [PRODUCTION, REMOVALS]
        return setting(a2a=[{"name": "deployer", "url": url}], policy={"rules": rules, **more})

    models = [Spoken(*map(sends, messages), says("all is done")), Spoken(says("deployed"))]
    with chain(top, lambda _: setting(), models=models) as (above, deployer):
        yield above, deployer


def events(live: LiveMesh, body: Any) -> list[AnyEvent]:
    return list(live.run(live.mesh.journal.read(body["conversation"]["id"])))


def rules_in(journal: list[AnyEvent]) -> list[str]:
    kinds = ApprovalRequired | ToolIntent | ToolResult
    return [event.rule for event in journal if isinstance(event, kinds)]


def test_a_message_that_a_rule_asks_about_waits_under_its_name_and_is_not_sent_before() -> None:
    with deploying("to PRODUCTION, please") as (top, deployer):
        person = Person(top)
        body = person.say("go")
        asked = body["result"]["approval"]
        assert (asked["tool_name"], asked["rule"]) == ("a2a_deployer", "prod")
        assert asked["why"] == "A person deploys to production."
        assert asked["remote_agent_name"] is None and "remember" not in asked
        assert deployer.requests == 0
        body = person.decide(body, {"approved": True})
        assert body["result"]["response"] == "all is done"
        assert rules_in(events(top, body)) == ["prod"] * 3
        assert deployer.mesh.passes == 1


@pytest.mark.parametrize("default", ["hints", "ask"])
def test_a_message_that_a_rule_denies_never_reaches_the_other_agent(default: str) -> None:
    with deploying("Remove production", "remove it", default=default) as (top, deployer):
        body = Person(top).say("go")
        results = [event for event in events(top, body) if isinstance(event, ToolResult)]
        assert [(each.rule, each.is_error) for each in results] == [("removals", True)] * 2
        assert results[0].content == "Nothing is removed by agents. (rule removals of the policy)"
        assert body["result"]["response"] == "all is done"
        assert deployer.requests == 0


def test_nor_does_one_that_a_person_has_edited_to_what_is_denied_or_rejected() -> None:
    with deploying("to production", "to production") as (top, deployer):
        person = Person(top)
        edited = {"approved": True, "edited_args": {"message": "Remove production"}}
        body = person.decide(person.say("go"), edited)
        assert body["result"]["approval"]["rule"] == "prod"  # the next one
        person.decide(body, {"approved": False, "reason": "not today"})
        assert deployer.requests == 0


def test_a_message_that_no_rule_is_about_is_sent_at_once() -> None:
    with deploying("to staging") as (top, deployer):
        assert Person(top).say("go")["result"]["response"] == "all is done"
        assert (deployer.mesh.passes, deployer.requests > 0) == (1, True)


@pytest.mark.parametrize(
    ("message", "rule", "state"),
    [("Remove production", "removals", "failed"), ("to production", "prod", "waiting_approval")],
)
def test_an_agent_that_is_a_node_of_the_tree_is_judged_by_the_same_name(
    message: str, rule: str, state: str
) -> None:
    def top(url: str) -> str:
        node = {"name": "deployer", "type": "a2a", "url": url}
        return setting(agent=node, policy={"rules": [PRODUCTION, REMOVALS]})

    with chain(top, lambda _: setting(), models=[Spoken(says("")), Spoken(says("deployed"))]) as meshes:
        body = httpx.post(f"{meshes[0].url}/conversations", json={"message": message}, timeout=20).json()
        assert rules_in(events(meshes[0], body)) == [rule]
        assert body["conversation"]["turn"]["state"] == state
        assert meshes[1].requests == 0
