"""Records calls between actors to keep for ever: `python -m tests.deployments.frames.record 2` writes
``2.json``, the calls of protocol 2 (`deployments.channel.PROTOCOL`).

A file has the arguments and outcomes of every method, as they travel: one for each member of a union. That of
a protocol that is not released yet is deleted and recorded anew when something is added. After the release,
it stays for ever: what another release reads and writes is compared with it.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from deployments import services
from deployments.rpc import Service

HERE = Path(__file__).parent
_SIMPLE: dict[type[inspect.Type], object] = {
    inspect.StrType: "x",
    inspect.IntType: 3,
    inspect.BoolType: True,
    inspect.FloatType: 0.5,
    inspect.BytesType: b"b",
    inspect.AnyType: {"a": ["b"]},
    inspect.NoneType: None,
}
_DEEPEST = 8
_pack = msgspec.msgpack.Encoder().encode


def coders() -> Iterator[tuple[str, Any]]:
    """Each type that travels, under the name of its method."""
    for service in vars(services).values():
        if isinstance(service, Service):
            for wire in service._wires.values():
                name = f"{service._stub.__name__}.{wire.name}"
                yield f"{name} arguments", wire._arguments
                yield f"{name} outcome", wire._outcome


def frames_of(kind: type[msgspec.Struct]) -> dict[str, bytes]:
    """A message with something in every field, for each member of the unions that its fields are."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    found = {}
    for field in info.fields:
        for member in _members(field.type):
            values = {each.name: _some(each.type, 1) for each in info.fields}
            value = kind(**{**values, field.name: _some(member, 1)})
            found[f"{field.name} {_name(member)}"] = _pack(value)
    return found


def _members(of: inspect.Type) -> tuple[inspect.Type, ...]:
    match of:
        case inspect.Metadata(type=inner):
            return _members(inner)
        case inspect.UnionType(types=types):
            return types
        case inspect.ListType(item_type=inspect.UnionType(types=types)):
            return tuple(inspect.ListType(each) for each in types)
        case _:
            return (of,)


def _name(of: inspect.Type) -> str:
    match of:
        case inspect.Metadata(type=inner):
            return _name(inner)
        case inspect.StructType(cls=cls):
            return cls.__name__.lstrip("_")
        case inspect.ListType(item_type=item):
            return f"{_name(item)}s"
        case _:
            return type(of).__name__.removesuffix("Type").lower()


def _some(of: inspect.Type, depth: int) -> Any:
    match of:
        case inspect.Metadata(type=inner):
            return _some(inner, depth)
        case inspect.UnionType(types=types):
            return _some(next(t for t in types if not isinstance(t, inspect.NoneType)), depth)
        case inspect.LiteralType(values=literals):
            return literals[0]
        case inspect.StructType(cls=cls, fields=fields):
            kept = [field for field in fields if field.required or depth < _DEEPEST]
            return cls(**{field.name: _some(field.type, depth + 1) for field in kept})
        case inspect.TupleType(item_types=items):
            return tuple(_some(item, depth + 1) for item in items)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            some = [] if depth > _DEEPEST else [_some(item, depth + 1)]
            return some if isinstance(of, inspect.ListType) else tuple(some)
        case inspect.SetType(item_type=item) | inspect.FrozenSetType(item_type=item):
            return {_some(item, depth + 1)}
        case inspect.DictType(key_type=key, value_type=value):
            return {} if depth > _DEEPEST else {_some(key, depth): _some(value, depth + 1)}
        case inspect.DataclassType(cls=cls, fields=fields) | inspect.NamedTupleType(cls=cls, fields=fields):
            return cls(**{field.name: _some(field.type, depth + 1) for field in fields})
        case _:
            return _SIMPLE[type(of)]


def record() -> dict[str, dict[str, str]]:
    """What a file has."""
    return {
        name: {variant: b64encode(frame).decode() for variant, frame in frames_of(kind).items()}
        for name, kind in coders()
    }


if __name__ == "__main__":
    file = HERE / f"{sys.argv[1]}.json"
    if file.exists():
        sys.exit(f"{file} is there: delete it first, unless its protocol is released")
    lines = (f"{json.dumps(name)}: {json.dumps(frames, sort_keys=True)}" for name, frames in record().items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
