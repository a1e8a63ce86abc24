"""On which version of its agent a turn runs: an open one on its own, a new one on the newest."""

from typing import Any

from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, Completed, ConversationCreated, Error, Paused, UserMessage
from mesh.core.ids import new_id
from mesh.journal.listing import JournalEdges, entry_at_rest, entry_of
from mesh.keeper.requests import Caller, CountVersions, Create, MoveToVersion, Page, SendMessage
from tests.worlds.mesh import SIMPLE, ScriptedLlm, WorldMesh, calls, says

CALLER = Caller(session_id="s1")
NEWER = SIMPLE.replace("Be kind.", "Be brief.")
NEWEST = SIMPLE.replace("Be kind.", "Be silent.")
PIPE = """\
name: test
llm: {model: scripted}
agent:
  type: sequential
  name: root
  agents:
    - {name: plan, type: llm, prompt: Plan.}
    - {name: act, type: llm, prompt: Act.}
"""
LOOP = "{name: act, type: loop, max_iterations: 1, agents: [{name: x, type: llm, prompt: x}]}"
ADD = calls(("add", {"n": 1}))


def versions_of(events: list[AnyEvent]) -> list[str]:
    """The version that each turn ended on."""
    first = events[0]
    assert isinstance(first, ConversationCreated)
    return [event.digest or first.digest for event in events if isinstance(event, Completed | Error)]


def pending(body: dict[str, Any]) -> str:
    return str(body["conversation"]["pending_approval"]["uuid"])


async def test_an_open_turn_ends_on_its_version_and_the_next_begins_on_the_newest() -> None:
    llm = ScriptedLlm(ADD, says("added"), says("brief"))
    async with WorldMesh(llm) as world:
        _, body = await world.create("go")
        id, first = body["conversation"]["id"], world.config.digest
        await world.upgrade(NEWER)
        _, body = await world.decide(pending(body), "approve")
        assert (body["result"]["response"], body["conversation"]["version"]) == ("added", first)
        _, body = await world.say(id, "on")
        assert (body["result"]["response"], body["conversation"]["version"]) == ("brief", world.newest.digest)
        events = await world.journal.read(id)
    assert [request.system for request in llm.requests] == ["Be kind.", "Be kind.", "Be brief."]
    assert versions_of(events) == [first, world.newest.digest]
    opened = [event for event in events if isinstance(event, UserMessage)]
    assert [event.digest for event in opened] == ["", world.newest.digest]
    assert [bool(event.nodes) for event in opened] == [False, True]
    assert "added" in str(llm.requests[-1].messages)  # what was said before is known to the newer version


async def test_what_a_crash_interrupts_goes_on_with_the_version_that_its_message_said() -> None:
    async with WorldMesh(ScriptedLlm(says("kind"), ADD, says("added"))) as world:
        _, body = await world.create("go")
        id = body["conversation"]["id"]
        await world.upgrade(NEWER)
        _, body = await world.say(id, "on")
        newer = world.newest.digest
        await world.upgrade(NEWEST)
        await world.crash()
        _, body = await world.decide(pending(body), "approve")
        assert (body["result"]["response"], body["conversation"]["version"]) == ("added", newer)


async def test_a_pinned_conversation_stays_on_its_first_version_and_others_begin_on_the_newest() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as world:
        _, body = await world.create("go")
        await world.upgrade(NEWER, pins_versions=True)
        _, old = await world.say(body["conversation"]["id"], "on")
        _, new = await world.create("go")
        assert old["conversation"]["version"] == world.config.digest
        assert new["conversation"]["version"] == world.newest.digest


async def test_a_rollback_is_one_more_version() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as world:
        _, body = await world.create("go")
        id = body["conversation"]["id"]
        first, versions = world.config.digest, []
        for config in (NEWER, SIMPLE):
            await world.upgrade(config)
            _, body = await world.say(id, "on")
            versions.append(world.newest.digest)
        events = await world.journal.read(id)
    assert versions_of(events) == [first, *versions]
    assert (versions[1], body["conversation"]["version"]) == (first, first)


async def test_listings_tell_the_version_of_the_newest_turn_also_from_the_ends_of_a_journal() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"), says("ok"), says("ok"), ADD)) as world:
        _, moved = await world.create("go")
        _, stayed = await world.create("go")
        await world.upgrade(NEWER)
        await world.say(moved["conversation"]["id"], "on")
        _, waiting = await world.create("go")
        first, newer = world.config.digest, world.newest.digest
        _, counted = await world.ask(CountVersions())
        assert counted["by_version"] == {first: {"active": 1}, newer: {"active": 1, "waiting_approval": 1}}
        for version, body in ((first, [stayed]), (newer, [waiting, moved])):
            _, page = await world.ask(Page(version=version))
            assert {c["id"] for c in page["conversations"]} == {b["conversation"]["id"] for b in body}
        _, page = await world.ask(Page(version=newer, status="waiting_approval"))
        assert [c["id"] for c in page["conversations"]] == [waiting["conversation"]["id"]]
        events = await world.journal.read(moved["conversation"]["id"])
    assert entry_at_rest(JournalEdges(events[:2], events[-2:])) == entry_of(fold(events))


class TestMove:
    async def test_a_waiting_conversation_goes_on_with_another_version(self) -> None:
        llm = ScriptedLlm(ADD, says("brief"))
        async with WorldMesh(llm) as world:
            _, body = await world.create("go")
            id, uuid = body["conversation"]["id"], pending(body)
            await world.upgrade(NEWER)
            status, body = await world.ask(MoveToVersion(id, by="ann"))
            assert (status, body["conversation"]["version"]) == (200, world.newest.digest)
            assert pending(body) == uuid
            await world.crash()
            _, body = await world.decide(uuid, "approve")
            assert (body["result"]["response"], world.ledger.lines) == ("brief", ["add 1"])
            events = await world.journal.read(id)
        assert [request.system for request in llm.requests] == ["Be kind.", "Be brief."]
        (moved,) = (event for event in events if isinstance(event, Paused) and event.digest)
        assert (moved.by, moved.digest, bool(moved.nodes)) == ("ann", world.newest.digest, True)
        assert versions_of(events) == [world.newest.digest]

    async def test_moved_twice_it_is_moved_once_and_back_it_is_moved_back(self) -> None:
        async with WorldMesh(ScriptedLlm(ADD, says("ok"))) as world:
            _, body = await world.create("go")
            id = body["conversation"]["id"]
            await world.upgrade(NEWER)
            wanted = [world.newest.digest, world.newest.digest, world.config.digest, world.newest.digest]
            for version in wanted:
                status, shown = await world.ask(MoveToVersion(id, version))
                assert (status, shown["conversation"]["version"]) == (200, version)
            events = await world.journal.read(id)
        assert sum(isinstance(event, Paused) for event in events) == 1 + 3

    async def test_a_trial_changes_nothing(self) -> None:
        async with WorldMesh(ScriptedLlm(ADD)) as world:
            _, body = await world.create("go")
            id = body["conversation"]["id"]
            before = await world.journal.read(id)
            await world.upgrade(NEWER)
            status, _ = await world.ask(MoveToVersion(id, is_trial=True))
            assert (status, await world.journal.read(id)) == (200, before)

    async def test_the_waiting_node_has_to_be_there_by_path_name_and_type(self) -> None:
        changed = {
            "name": PIPE.replace("name: act", "name: do"),
            "path": PIPE.replace("    - {name: plan, type: llm, prompt: Plan.}\n", ""),
            "type": PIPE.replace(
                "{name: act, type: llm, prompt: Act.}",
                LOOP,
            ),
            "around": PIPE.replace("type: sequential", "type: parallel"),
        }
        told = {
            "name": "llm node act (0.1) is llm node do",
            "path": "llm node act (0.1) is not there",
            "type": "llm node act (0.1) is loop node act",
            "around": "sequential node root (0) is parallel node root",
        }
        for what, config in changed.items():
            async with WorldMesh(ScriptedLlm(says("planned"), ADD), config=PIPE) as world:
                _, body = await world.create("go")
                await world.upgrade(config)
                status, refused = await world.ask(MoveToVersion(body["conversation"]["id"]))
                assert status == 409, (what, refused)
                assert refused["error"] == f"{told[what]} in version {world.newest.digest}"

    async def test_what_other_nodes_did_is_taken_from_the_journal(self) -> None:
        llm = ScriptedLlm(says("planned"), ADD, says("done"))
        async with WorldMesh(llm, config=PIPE) as world:
            _, body = await world.create("go")
            await world.upgrade(PIPE.replace("name: plan", "name: planner").replace("Act.", "Act now."))
            status, _ = await world.ask(MoveToVersion(body["conversation"]["id"]))
            _, body = await world.decide(pending(body), "approve")
        assert (status, body["result"]["response"], world.ledger.lines) == (200, "done", ["add 1"])
        assert [request.system for request in llm.requests] == ["Plan.", "Act.", "Act now."]

    async def test_back_is_the_version_with_which_the_conversation_began_and_no_other(self) -> None:
        async with WorldMesh(ScriptedLlm(says("ok"), ADD)) as world:
            _, body = await world.create("go")
            id, first = body["conversation"]["id"], world.config.digest
            await world.upgrade(NEWER)
            middle = world.newest.digest
            await world.say(id, "on")
            await world.upgrade(NEWEST)
            assert (await world.ask(MoveToVersion(id)))[0] == 200
            status, body = await world.ask(MoveToVersion(id, middle))
            assert (status, "is neither the newest" in body["error"]) == (409, True)
            status, body = await world.ask(MoveToVersion(id, first))
            assert (status, body["conversation"]["version"]) == (200, first)

    async def test_what_does_not_wait_and_versions_that_are_not_known_are_refused(self) -> None:
        async with WorldMesh(ScriptedLlm(says("ok"), ADD)) as world:
            _, rests = await world.create("go")
            _, waits = await world.create("go")
            await world.upgrade(NEWER)
            status, body = await world.ask(MoveToVersion(rests["conversation"]["id"]))
            assert status == 409
            assert "waits for nobody: its next turn begins with the newest" in body["error"]
            status, body = await world.ask(MoveToVersion(waits["conversation"]["id"], "0" * 12))
            assert status == 409
            assert "version 000000000000 is neither the newest" in body["error"]
            status, _ = await world.ask(MoveToVersion(new_id()))
            assert status == 404

    async def test_a_decision_that_comes_first_leaves_nothing_to_move(self) -> None:
        async with WorldMesh(ScriptedLlm(ADD, says("ok"))) as world:
            cid = new_id()
            _, body = await world.ask(Create(cid, CALLER, "go"))
            await world.upgrade(NEWER)
            await world.decide(pending(body), "approve")
            status, _ = await world.ask(MoveToVersion(cid))
            assert status == 409
            _, body = await world.ask(SendMessage(cid, CALLER, "on"))
            assert body["conversation"]["version"] == world.newest.digest
