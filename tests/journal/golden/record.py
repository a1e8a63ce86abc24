"""Records journals to keep for ever: `python -m tests.journal.golden.record v2` fills the folder ``v2``.

    v2/simple.jsonl        a journal as a mesh of that time wrote it, with fixed ids and times
    v2/simple.yaml         the config it ran under
    v2/simple.view.json    the conversation as clients saw it
    v2/simple.end.json     what it came to afterwards, if it was open: see `End`

A folder is recorded once, by the code that wrote such journals, and never again: whatever is written later
must read it. A folder that is there is not touched.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mesh.a2a.client.memory import MemoryAgent
from mesh.a2a.client.port import ForwardedHeaders, InputRequest, OutgoingMessage, RemoteApproval, RemoteTask
from mesh.config.model import A2aAgent
from mesh.core.conversation import fold
from mesh.core.errors import LlmError
from mesh.core.events import AnyEvent, Completed, Error, Event, Paused, decode, encode
from mesh.core.ids import approval_id
from mesh.core.messages import Assistant
from mesh.core.view import view
from mesh.journal.files import FileJournal
from mesh.keeper.requests import Caller, Complete, Create
from mesh.llm.port import LlmRequest
from mesh.tree.local import LocalTree
from tests.worlds.mesh import SIMPLE, ScriptedLlm, WorldMesh, calls, says
from tests.worlds.trees import EXIT, ByNode, add, config, llm, loop, parallel, sequential

HERE = Path(__file__).parent
ID = "00000000-0000-4000-8000-0000feedbeef"
WITHIN_S = 30.0


class End(msgspec.Struct):
    """What an open conversation came to when a person approved (or retried) all that was asked, oldest first:
    the kinds that were asked, the answer of the turn, the session state, and which numbers were added."""

    asked: list[str]
    answer: str
    state: dict[str, str]
    added: list[str]


def _another(agent: A2aAgent) -> MemoryAgent:
    """Another agent, which asks once and is content with any decision."""

    async def answers(message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask:
        if message.decision is not None:
            return RemoteTask("completed", f"{agent.name} did it.", "task-1", "context-1")
        asked = RemoteApproval("Run drop", "asked-1", "tool_call", "drop", {"n": 7})
        question = InputRequest("question-1", "mesh", (asked,))
        return RemoteTask("input-required", "Run drop?", "task-1", "context-1", question)

    return MemoryAgent(answers)


class Mesh(WorldMesh):
    """A mesh on files, with a model that answers each node by its name."""

    def __init__(self, model: ByNode, folder: Path, text: str) -> None:
        super().__init__(ScriptedLlm(says("never said")), FileJournal(folder), text)
        self.model = model
        self.tree = LocalTree(self.config, [self.ledger.session()], lambda _: model, self, _another)

    async def __aenter__(self) -> "Mesh":
        await super().__aenter__()
        return self

    async def __aexit__(self, *about: object) -> None:
        await super().__aexit__(*about)
        await self.journal.close()

    async def started(self, message: str = "Go.", token: str = "") -> dict[str, Any]:
        """The conversation after its first message."""
        caller = Caller(session_id="s1", idempotency_key="k1", body_hash="b1", token=token)
        _, body = await self.ask(Create(ID, caller, message))
        conversation: dict[str, Any] = body["conversation"]
        return conversation

    async def decided(self, decision: str, **more: Any) -> dict[str, Any]:
        """The conversation after the oldest approval was decided."""
        uuid = (await self.show(ID))["pending_approval"]["uuid"]
        _, body = await self.decide(uuid, decision, by="ann", **more)
        conversation: dict[str, Any] = body["conversation"]
        return conversation


Play = Callable[[Mesh], Awaitable[object]]


class Scenario(msgspec.Struct):
    """Something worth keeping. ``without``: events that an older mesh did not write yet, nor what it did not
    say in the others."""

    text: str
    model: ByNode
    play: Play
    without: tuple[type[Event], ...] = ()


async def _decided_and_closed(mesh: Mesh) -> None:
    await mesh.started()
    await mesh.decided("approve")
    await mesh.say(ID, "And now?")
    await mesh.ask(Complete(ID))


async def _died_while_a_tool_ran(mesh: Mesh, decision: str | None = "retry") -> None:
    """The process died between claim and result; a person looked into it."""
    running = asyncio.Event()

    async def hang() -> None:
        running.set()
        await asyncio.wait_for(asyncio.Event().wait(), WITHIN_S)

    await mesh.started()
    mesh.ledger.before_add = hang
    deciding = asyncio.create_task(mesh.decided("approve"))
    await asyncio.wait_for(running.wait(), WITHIN_S)
    mesh.ledger.before_add = None
    await mesh.crash()
    await asyncio.gather(deciding, return_exceptions=True)
    await mesh.ask(Complete(ID))  # refused, when the turn rests at its question
    if decision:
        await mesh.decided(decision)


async def _lost_its_token(mesh: Mesh) -> None:
    """The process died while another agent's question waited, and the caller's token with it."""
    await mesh.started(token="secret")
    await mesh.crash()
    await mesh.decided("approve")


async def _answered(mesh: Mesh) -> None:
    asked = (await mesh.started())["pending_approval"]
    await mesh.answer(asked["uuid"], "Blue.")


async def _one_branch_of_three_waits(mesh: Mesh) -> None:
    await mesh.started()
    await mesh.decided("approve", edited={"n": 10})
    await mesh.decided("reject", reason="2 is taken")


class _Failing(ByNode):
    """A model that fails one node, and so the turn."""

    async def stream(self, request: LlmRequest) -> Any:
        if request.system.startswith("bad"):
            raise LlmError("the provider is down")
        async for event in super().stream(request):
            yield event


class _AnswersAgain(ByNode):
    """A model that answers each node in turn, whether it is asked again for a tool or for an objection."""

    async def stream(self, request: LlmRequest) -> Any:
        name = request.system.partition(":")[0]
        said = sum(isinstance(message, Assistant) for message in request.messages)
        yield self._script[name][said]


TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


def _checked(**more: Any) -> str:
    critic = llm("critic", "{output}")
    return config(llm("only", "Be kind.", output_schema=TOTAL, **more), agents=[critic])


def _corrects() -> ByNode:
    verdict = says('{"valid": true, "feedback": ""}')
    return _AnswersAgain(only=[says("seven"), says('{"total": 7}')], critic=[verdict])


def _only(**more: Any) -> str:
    return config(llm("only", "Be kind."), **more)


def _asks() -> ByNode:
    return ByNode(only=[add(1), says("Done.")])


def _only_asking() -> str:
    return config(llm("only", "Be kind.", can_ask_user=True))


def _wonders() -> ByNode:
    return ByNode(only=[calls(("ask_user", {"question": "Which colour?"})), says("Blue it is.")])


ANOTHER = {"name": "other", "type": "a2a", "url": "http://other.example"}
PIPELINE = sequential(
    llm("plan", "{user_message}", output_key="plan"),
    sequential(llm("check"), llm("change", "{plan}", output_key="change"), name="act"),
    llm("report", "{plan} {change}"),
)
THREE = sequential(
    parallel(
        llm("a", output_key="ka"),
        llm("b", output_key="kb"),
        sequential(llm("quick"), llm("c", output_key="kc"), name="branch"),
        approvals="ask",
    ),
    llm("last", "{ka} {kb} {kc}"),
)
ROUNDS = sequential(
    loop(llm("work", "{iteration} {work}", output_key="work"), llm("judge", can_exit_loop=True)),
    llm("last", "{work}"),
)
FAILS = sequential(llm("good", output_key="k"), llm("bad"))


def scenarios() -> dict[str, Scenario]:
    """All that is recorded, by name."""
    tools = ByNode(only=[calls(("look", {}), ("nothing", {})), says("Looked.")])
    three = ByNode(a=[add(1), says("a")], b=[add(2), says("b")], c=[add(3), says("c")])
    return {
        "simple": Scenario(_only(), tools, lambda mesh: mesh.started()),
        "single": Scenario(SIMPLE, ByNode(), lambda mesh: mesh.started()),
        "asked": Scenario(_only(), _asks(), lambda mesh: mesh.started()),
        "asked_before_paused_was_written": Scenario(_only(), _asks(), lambda mesh: mesh.started(), (Paused,)),
        "approved": Scenario(_only(), _asks(), lambda mesh: _then(mesh, "approve")),
        "edited": Scenario(_only(), _asks(), lambda mesh: _then(mesh, "approve", edited={"n": 5})),
        "rejected": Scenario(_only(), _asks(), lambda mesh: _then(mesh, "reject")),
        "refused": Scenario(_only(), _asks(), lambda mesh: _then(mesh, "reject", reason="Not today.")),
        "expiring": Scenario(_only(approval_timeout_s=86400.0), _asks(), lambda mesh: mesh.started()),
        "unknown": Scenario(_only(), _asks(), lambda mesh: _died_while_a_tool_ran(mesh, None)),
        "unknown_retried": Scenario(_only(), _asks(), _died_while_a_tool_ran),
        "pipeline_paused": Scenario(
            config(PIPELINE), ByNode(change=[add(7), says("changed")]), lambda mesh: mesh.started()
        ),
        "parallel_one_pending": Scenario(config(THREE), three, _one_branch_of_three_waits),
        "loop_exit": Scenario(config(ROUNDS), ByNode(judge=EXIT), lambda mesh: mesh.started()),
        "failed": Scenario(config(FAILS), _Failing(), lambda mesh: mesh.started()),
        "asks_the_person": Scenario(_only_asking(), _wonders(), lambda mesh: mesh.started()),
        "answered": Scenario(_only_asking(), _wonders(), _answered),
        "asked_by_another": Scenario(config(ANOTHER), ByNode(), lambda mesh: mesh.started()),
        "told_another": Scenario(config(ANOTHER), ByNode(), lambda mesh: _then(mesh, "approve")),
        "lost_its_token": Scenario(config(ANOTHER), ByNode(), _lost_its_token),
        "completed": Scenario(_only(), _asks(), _decided_and_closed),
        "checked": Scenario(
            _checked(validate=[{"agent": "critic"}, {"person": True}]),
            _corrects(),
            lambda mesh: mesh.started(),
        ),
        "checked_and_replaced": Scenario(
            _checked(validate=[{"person": True}]),
            _corrects(),
            lambda mesh: _then(mesh, "approve", edited={"output": {"total": 8}}),
        ),
        "accepted_at_last": Scenario(
            _checked(max_runs=1, on_invalid="accept"), _corrects(), lambda mesh: mesh.started()
        ),
    }


async def _then(mesh: Mesh, decision: str, **more: Any) -> None:
    await mesh.started()
    await mesh.decided(decision, **more)


async def go_on(events: Sequence[AnyEvent], text: str, folder: Path) -> tuple[End, list[AnyEvent]]:
    """Lets a real keeper find a journal under its config and take the turn to its end; the journal then.

    The model answers every call that was not journaled in text, so that no script belongs to a journal.
    """
    (folder / f"conversation_{ID}.jsonl").write_bytes(lines(events))
    asked: list[str] = []
    async with asyncio.timeout(WITHIN_S), Mesh(ByNode(), folder, text) as mesh:
        while (await mesh.ask(Complete(ID)))[0] == 409:
            pending = (await mesh.show(ID))["pending_approval"]
            asked.append(pending["kind"])
            match pending["kind"]:
                case "question":
                    await mesh.answer(pending["uuid"], "Blue.")
                case "unknown_outcome":
                    await mesh.decided("retry")
                case _:
                    await mesh.decided("approve", token="fresh")
        after = await mesh.journal.read(ID)
        conversation = fold(after)
        last = conversation.last_answer
        assert isinstance(last, Completed | Error), last
        answer = last.response if isinstance(last, Completed) else last.message
        return End(asked, answer, conversation.session_state, mesh.ledger.lines), after


def lines(events: Sequence[AnyEvent]) -> bytes:
    """A journal as a file."""
    return b"".join(encode(event) + b"\n" for event in events)


def steady(events: Sequence[AnyEvent], without: tuple[type[Event], ...] = ()) -> list[AnyEvent]:
    """The same journal with times a second apart and approvals numbered. ``without``: see `Scenario`."""
    kept = [event for event in events if not isinstance(event, without)]
    found: list[AnyEvent] = []
    names: dict[str, str] = {}
    for seq, event in enumerate(kept, 1):
        fields: dict[str, Any] = {"seq": seq, "time": f"2026-01-01T00:00:{seq:02}.000Z"}
        if uuid := getattr(event, "uuid", ""):
            assert uuid[-8:] == approval_id(ID)[-8:]
            fields["uuid"] = names.setdefault(uuid, f"00000000-0000-4000-8000-{len(names) + 1:04}{ID[-8:]}")
        if answers := getattr(event, "answers", ""):
            fields["answers"] = names[answers]
        if getattr(event, "expires_at", ""):
            fields["expires_at"] = "2999-01-01T00:00:00.000Z"
        for measured in ("latency_ms", "duration_ms"):
            if hasattr(event, measured):
                fields[measured] = 7
        if without:
            fields |= {newer: "" for newer in ("asked_by", "output_key") if hasattr(event, newer)}
        found.append(msgspec.structs.replace(event, **fields))
    return found


async def record(folder: Path) -> None:
    """Fills an empty folder."""
    for name, scenario in scenarios().items():
        with tempfile.TemporaryDirectory() as place:
            async with Mesh(scenario.model, Path(place), scenario.text) as mesh:
                await scenario.play(mesh)
                events = steady(await mesh.journal.read(ID), scenario.without)
        (folder / f"{name}.jsonl").write_bytes(lines(events))
        (folder / f"{name}.yaml").write_text(scenario.text)
        _write(folder / f"{name}.view.json", view(fold(events)))
        if fold(events).turn_open:
            with tempfile.TemporaryDirectory() as place:
                end, _ = await go_on(events, scenario.text, Path(place))
            _write(folder / f"{name}.end.json", end)


def read(path: Path) -> list[AnyEvent]:
    """The events of a kept journal."""
    return [decode(line) for line in path.read_bytes().splitlines()]


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(msgspec.to_builtins(value), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    (version := HERE / sys.argv[1]).mkdir()
    asyncio.run(record(version))
