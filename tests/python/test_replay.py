"""Code that runs again: it takes the same way, and gets what it got before."""

import asyncio
import json
from dataclasses import dataclass, field

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.execution import RecordedQuestion
from mesh.python.interpreter import Interpreter
from mesh.python.questions import (
    Answer,
    AskedSomethingElse,
    BrokenProtocol,
    ForkQuestion,
    Question,
    Replay,
    WaitQuestion,
    asked_text,
    question_of,
)
from mesh.sandbox.launching import Launcher
from mesh.sandbox.sandbox import Kind
from tests.python.world import STARTED_NS, Forks, ended, interpreter_in, run
from tests.servers.shell.world import nothing_left

LOOKS_RANDOM = """
import asyncio, datetime, os, queue, random, secrets, tempfile, threading, time, uuid
async def sleeps():
    await asyncio.sleep(3600)
    return asyncio.get_running_loop().time()
def waits():
    try:
        queue.Queue().get(timeout=0.01)
    except queue.Empty:
        return time.monotonic()
found = {
    "set": list({f"word {i}" for i in range(50)}),
    "hash": hash("x"),
    "random": [random.random(), random.Random().random(), random.SystemRandom().random()],
    "bytes": [os.urandom(4).hex(), os.getrandom(4).hex(), secrets.token_hex(4), random.randbytes(4).hex()],
    "uuid": [str(uuid.uuid1()), str(uuid.uuid4())],
    "time": [time.time(), time.time_ns(), time.monotonic(), time.perf_counter_ns(), time.process_time()],
    "clock": [time.clock_gettime(time.CLOCK_REALTIME), time.clock_gettime_ns(time.CLOCK_MONOTONIC)],
    "date": [str(datetime.datetime.now()), str(datetime.datetime.now(datetime.UTC))],
    "day": [str(datetime.datetime.utcnow()), str(datetime.date.today())],
    "words": [time.ctime(), time.asctime(), time.strftime("%H:%M:%S"), time.localtime()[:], time.gmtime()[:]],
    "slept": [time.sleep(86400), time.time(), asyncio.run(sleeps()), waits()],
    "thread": threading.Event().wait(0.01),
    "name": os.path.basename(tempfile.mktemp()),
    "zone": [time.tzname[0], time.timezone],
}
found
"""
WORD = st.text("ab", min_size=1, max_size=3)
QUESTION = st.one_of(
    st.builds(ForkQuestion, WORD),
    st.builds(WaitQuestion, st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), st.booleans()),
)


async def test_what_looks_random_is_the_same_each_time_that_a_call_runs(confined: Interpreter) -> None:
    first, second = [(await ended(confined, LOOKS_RANDOM)).text for _ in range(2)]
    assert first.startswith("Result: ")
    assert first == second


async def test_another_call_has_other_random_numbers_and_another_order_of_sets(
    interpreter: Interpreter,
) -> None:
    first, second = [
        json.loads((await ended(interpreter, LOOKS_RANDOM, seed=seed)).value or "") for seed in (b"1", b"2")
    ]
    for key in ("set", "hash", "random", "bytes", "uuid", "name"):
        assert first[key] != second[key], key
    assert first["time"] == second["time"]


async def test_the_clock_begins_with_the_call_and_moves_only_as_the_code_does(
    interpreter: Interpreter,
) -> None:
    found = json.loads((await ended(interpreter, LOOKS_RANDOM)).value or "")
    assert 0 < found["time"][0] - STARTED_NS / 1e9 < 0.01
    assert found["date"][0].startswith("2026-01-01 00:00:00.000")
    assert found["words"][0] == "Thu Jan  1 00:00:00 2026"
    assert 86400 < found["slept"][1] - found["time"][0] < 86401
    assert found["zone"] == ["UTC", 0]


async def test_the_clock_moves_on_with_an_answer_and_to_the_same_moment_again(
    interpreter: Interpreter,
) -> None:
    host = Forks()
    code = "import time\nh = fork('a')\nwait(h)\ntime.time_ns()"
    first = await ended(interpreter, code, host)
    assert int(first.value or "") > STARTED_NS + 3600 * 10**9
    again = await run(interpreter, code, Forks(pauses=True), host.recorded)
    assert again == first


async def test_recorded_questions_are_not_asked_again(interpreter: Interpreter) -> None:
    host = Forks()
    code = "[wait(fork(f'number {i}')) for i in range(3)]"
    first = await ended(interpreter, code, host)
    nobody = Forks()
    assert await run(interpreter, code, nobody, host.recorded) == first
    assert nobody.recorded == []


@pytest.mark.parametrize("known", range(7))
async def test_after_any_number_of_recorded_questions_the_code_comes_to_the_same(
    interpreter: Interpreter, known: int
) -> None:
    code = "import random\n[wait(fork(f'{i} {random.random()}')) for i in range(3)]"
    host = Forks()
    first = await ended(interpreter, code, host)
    later = Forks()
    later.recorded, later.prompts = host.recorded[:known], host.prompts[: (known + 1) // 2]
    again = await run(interpreter, code, later, host.recorded[:known])
    assert again == first
    assert [each.asked for each in later.recorded] == [each.asked for each in host.recorded]


async def test_a_call_whose_forks_all_pause_pauses(interpreter: Interpreter) -> None:
    assert await run(interpreter, "wait(fork('a'))", Forks(pauses=True)) is None


async def test_code_that_asks_something_else_ends_with_both_questions(interpreter: Interpreter) -> None:
    host = Forks()
    await ended(interpreter, "wait([fork('a')], any=True)", host)
    end = await run(interpreter, "print('again')\nfork('b')", Forks(), host.recorded)
    assert end is not None
    assert end.text == (
        "Logs:\nagain\n\nError: the code asked something else than when it ran before, so it cannot go on.\n"
        '  Question 1 before: fork("a")\n  Question 1 now: fork("b")'
    )
    end = await run(interpreter, "wait([fork('a')], timeout=2)", Forks(), host.recorded)
    assert end is not None
    assert end.error.endswith("before: wait([1], any=True)\n  Question 2 now: wait([1], timeout=2.0)")


async def test_code_that_ends_earlier_than_before_just_ends(interpreter: Interpreter) -> None:
    host = Forks()
    await ended(interpreter, "wait(fork('a'))", host)
    assert (await run(interpreter, "fork('a')", Forks(), host.recorded)) is not None


@dataclass
class Slow(Forks):
    """Answers waits only once it is told to."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__init__()

    async def answer(self, number: int, question: Question) -> Answer | None:
        if isinstance(question, WaitQuestion):
            self.waiting.set()
            await asyncio.wait_for(self.gate.wait(), 30)
        return await super().answer(number, question)


async def test_code_that_waits_makes_room_and_goes_on_afterwards(one_kind: Kind, launcher: Launcher) -> None:
    slow = Slow()
    with interpreter_in(one_kind, launcher, processes=1) as interpreter:
        waiting = asyncio.create_task(
            ended(interpreter, "import random\n[random.random(), wait(fork('a'))]", slow)
        )
        quick = await asyncio.wait_for(ended(interpreter, "import random\nrandom.random()"), 30)
        slow.gate.set()
        end = await asyncio.wait_for(waiting, 30)
    assert end.value == f'[{quick.value}, "about a"]'
    assert slow.prompts == ["a"]


async def test_a_call_that_is_cancelled_leaves_no_process(interpreter: Interpreter) -> None:
    host = Slow()
    with nothing_left(interpreter.launcher()):
        running = asyncio.create_task(run(interpreter, "wait(fork('a'))", host))
        await asyncio.wait_for(host.waiting.wait(), 30)
        assert psutil.Process(interpreter.launcher().pid).children()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert (await ended(interpreter, "1")).value == "1"


@given(st.lists(QUESTION, max_size=6), st.integers(0, 6))
def test_a_replay_answers_what_is_recorded_and_nothing_else(asked: list[Question], known: int) -> None:
    texts = [asked_text(question) for question in asked]
    replay = Replay([RecordedQuestion(text, f"answer {n}") for n, text in enumerate(texts[:known])])
    for number, text in enumerate(texts):
        assert replay.number == min(number, known)
        assert replay.answer(text) == (f"answer {number}" if number < known else None)


@given(st.lists(QUESTION, min_size=1, max_size=4), QUESTION, st.data())
def test_a_replay_takes_no_other_question(
    asked: list[Question], other: Question, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(asked) - 1))
    replay = Replay([RecordedQuestion(asked_text(question), "{}") for question in asked])
    for question in asked[:at]:
        replay.answer(asked_text(question))
    if asked_text(other) == asked_text(asked[at]):
        assert replay.answer(asked_text(other)) == "{}"
    else:
        with pytest.raises(AskedSomethingElse):
            replay.answer(asked_text(other))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["fork", "wait", "any", "x"]), inner)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["fork", "wait", "any", "timeout", "end"]), JSON))
def test_whatever_comes_from_a_process_is_a_question_or_is_refused(message: dict[str, object]) -> None:
    try:
        question = question_of(message)
    except BrokenProtocol:
        return
    assert json.loads(asked_text(question))
