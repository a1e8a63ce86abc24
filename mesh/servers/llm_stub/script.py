"""The script of the stub: rules that turn a model call into a scripted answer.

seed: 7                       # of the random delays and faults
delay: 0.05                   # seconds; or [0.02, 0.08], uniform
log: calls.jsonl              # every call appended, one JSON object a line
faults: {error: 0.01, status: 503, broken: 0.01, hang: 0.0}
rules:                        # the first that matches answers; none: an echo, or what a schema asks for
  - match: {model: "gpt-*", last: "weather", system: "^You", from: user, tools: [get_weather],
            call: 3, conversation_call: 1, format: openai, output_schema: true, forced: true}
    times: 2                  # how often the rule answers, at most
    answer: {text: "Hello", tool_calls: [{name: get_weather, arguments: {city: Oslo}}],
             delay: 0.1, status: 429, headers: {retry-after: "1"}, error: "slow down",
             broken: middle, empty: true, refusal: "No.", content_filter: true,
             finish: length, usage: {input: 10, output: 5, cached: 2}, chunk_delay: 0.01}
"""

import fnmatch
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mesh.config.problem_texts import problems_of, spelled
from mesh.core.errors import ConfigError
from mesh.llm.schema_example import example

FormatName = Literal["openai", "anthropic", "gemini"]
Speaker = Literal["user", "tool"]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at. ``last`` is the last user text or tool result, ``speaker`` says which;
    ``system`` is the system prompt.
    ``output_schema`` is the schema of the answer, if the request has one in the format's own form;
    ``forced_tool`` is the tool that must be called, with its schema; the last one if any may be.

    ``conversation_call`` counts from 1: the assistant messages that were sent along, and this one.
    """

    format: str
    model: str
    last: str
    speaker: Speaker
    tools: frozenset[str]
    conversation_call: int
    stream: bool
    system: str = ""
    size: int = 0
    output_schema: dict[str, Any] | None = None
    forced_tool: tuple[str, dict[str, Any]] | None = None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _ordered(delay: float | tuple[float, float]) -> float | tuple[float, float]:
    if isinstance(delay, tuple) and delay[0] > delay[1]:
        raise ValueError("the range must be [least, most]")
    return delay


_Seconds = Annotated[float, Field(ge=0, le=3600)]
Delay = Annotated[_Seconds | tuple[_Seconds, _Seconds], AfterValidator(_ordered)]
Rate = Annotated[float, Field(ge=0, le=1)]
HttpStatus = Annotated[int, Field(ge=400, le=599)]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


class ScriptedCall(_Strict):
    """A tool call to answer with. ``malformed`` is sent in place of the arguments, as it stands."""

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""
    malformed: str = ""
    signature: str = ""


class ScriptedUsage(_Strict):
    """Tokens to report. ``cached`` are part of ``input``."""

    input: int = 1
    output: int = 1
    cached: int = 0


class ScriptedAnswer(_Strict):
    """What to answer. ``broken``: the connection ends before, or in the middle of, the answer."""

    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    delay: Delay | None = None
    chunk_delay: _Seconds = 0.0
    status: HttpStatus | None = None
    headers: dict[str, str] = {}
    error: str = "scripted error"
    broken: Literal["before", "middle"] | None = None
    hang: bool = False
    empty: bool = False
    refusal: str = ""
    content_filter: bool = False
    finish: Literal["stop", "tool_calls", "length"] | None = None
    usage: ScriptedUsage | None = None


class RuleMatch(_Strict):
    """Everything given must hold."""

    model: str | None = None
    last: Annotated[str, AfterValidator(_compiles)] | None = None
    system: Annotated[str, AfterValidator(_compiles)] | None = None
    speaker: Speaker | None = Field(default=None, alias="from")
    tools: tuple[str, ...] = ()
    call: Annotated[int, Field(ge=1)] | None = None
    conversation_call: Annotated[int, Field(ge=1)] | None = None
    format: FormatName | None = None
    output_schema: bool | None = None
    forced: bool | None = None

    def fits(self, call: ModelRequest, number: int) -> bool:
        """Whether the ``number``-th call of the server's life is meant."""
        return (
            (self.format is None or self.format == call.format)
            and (self.call is None or self.call == number)
            and (self.conversation_call is None or self.conversation_call == call.conversation_call)
            and (self.speaker is None or self.speaker == call.speaker)
            and (self.model is None or fnmatch.fnmatchcase(call.model, self.model))
            and (self.output_schema is None or self.output_schema == (call.output_schema is not None))
            and (self.forced is None or self.forced == (call.forced_tool is not None))
            and call.tools.issuperset(self.tools)
            and (self.last is None or re.search(self.last, call.last) is not None)
            and (self.system is None or re.search(self.system, call.system) is not None)
        )


class ScriptRule(_Strict):
    """An answer, and the calls it is for."""

    match: RuleMatch = RuleMatch()
    answer: ScriptedAnswer
    times: Annotated[int, Field(ge=1)] | None = None


class Faults(_Strict):
    """Rates of injected faults, each decided per call by the seeded generator."""

    error: Rate = 0.0
    status: HttpStatus = 500
    broken: Rate = 0.0
    hang: Rate = 0.0


class ScriptDocument(_Strict):
    """A whole script, as it is written."""

    seed: int = 0
    delay: Delay = 0.0
    log: str | None = None
    faults: Faults = Faults()
    rules: Annotated[tuple[ScriptRule, ...], Field(max_length=10_000)] = ()


class Script:
    """A script at work: counts calls, spends rules, throws the dice.

    Raises `ConfigError` that names every wrong key and the index of its rule.
    """

    def __init__(self, document: Mapping[str, Any] | None = None, name: str = "script") -> None:
        try:
            self.document = ScriptDocument.model_validate(dict(document or {}))
        except ValidationError as error:
            found = problems_of(error.errors(), ScriptDocument, document)
            raise ConfigError([f"{name}: {spelled(loc)}: {problem}" for loc, problem in found]) from None
        self._left = [rule.times for rule in self.document.rules]
        self._dice = random.Random(self.document.seed)
        faults = self.document.faults
        self._faulty = any((faults.error, faults.broken, faults.hang))
        self.calls = 0

    def answer(self, call: ModelRequest) -> ScriptedAnswer:
        """The answer to the next call: a fault by chance, else the first rule that fits, else an echo, or
        what the request's schema asks for."""
        self.calls += 1
        if self._faulty and (fault := self._fault()) is not None:
            return fault
        for index, rule in enumerate(self.document.rules):
            left = self._left[index]
            if left != 0 and rule.match.fits(call, self.calls):
                self._left[index] = None if left is None else left - 1
                return rule.answer
        return _unscripted(call)

    def delay_of(self, answer: ScriptedAnswer) -> float:
        """Seconds to wait before this answer."""
        delay = self.document.delay if answer.delay is None else answer.delay
        return delay if isinstance(delay, float | int) else self._dice.uniform(*delay)

    def _fault(self) -> ScriptedAnswer | None:
        faults, throw = self.document.faults, self._dice.random()
        if throw < faults.error:
            return ScriptedAnswer(status=faults.status, error="injected fault")
        if throw < faults.error + faults.broken:
            return ScriptedAnswer(text="never to be read", broken="middle")
        if throw < faults.error + faults.broken + faults.hang:
            return ScriptedAnswer(hang=True)
        return None


def _unscripted(call: ModelRequest) -> ScriptedAnswer:
    if call.output_schema is not None:
        text = msgspec.json.encode(example(call.output_schema)).decode()
        return ScriptedAnswer.model_construct(text=text)
    if call.forced_tool is not None:
        name, schema = call.forced_tool
        forced = ScriptedCall.model_construct(name=name, arguments=example(schema))
        return ScriptedAnswer.model_construct(tool_calls=(forced,))
    return ScriptedAnswer.model_construct(text=f"echo: {call.last}")


def load(path: Path) -> Script:
    """Reads a script from a YAML file. Raises `ConfigError`."""
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: not YAML: {error}"]) from None
    if document is not None and not isinstance(document, dict):
        raise ConfigError(
            [f"{path}: expected a mapping with the keys {', '.join(ScriptDocument.model_fields)}"]
        )
    return Script(document, str(path))
