"""A JSON Schema in the form that a provider takes for answers. Pure.

The forms are subsets of JSON Schema. What a provider makes of one is a hint to its model, because each answer
is checked here with the schema of the config. So a form may be *wider* than the schema (a keyword that it
lacks is left out, and told in a description), and *narrower* where every value can still be said (an object
has no properties beside those that it lists; one with a default is always given). Where a form would make an
answer impossible that the schema means, it is not used: `NotExpressible`.

    schema ── `in_form(schema, OPENAI | ANTHROPIC | GEMINI)` ──► the provider's own form
           ── `as_arguments(schema)` ──► the input schema of a tool whose arguments are the answer

``docs/decisions/structured-output.md`` says what becomes of each keyword, and why.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec

MOST_TOLD = 500
"""The most characters that a description tells about keywords that were left out."""

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTS = ("minLength", "maxLength", "pattern", "format")
_ARRAYS = ("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains")
_OBJECTS = ("minProperties", "maxProperties", "propertyNames", "dependentRequired")
_NARROWING = (*_NUMBERS, *_TEXTS, *_ARRAYS, *_OBJECTS, "not")
"""Without one of these, a schema is wider."""
_TOLD = (*_NARROWING, "default", "examples")
_NOT_IN_FORMS = (
    *("patternProperties", "if", "then", "else", "dependentSchemas", "dependencies", "additionalItems"),
    *("unevaluatedProperties", "unevaluatedItems", "$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef"),
    *("$recursiveAnchor", "$recursiveRef"),
)
"""Without one of these, a form could forbid what the schema allows, or a reference could lead elsewhere."""
_SHAPE = ("type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "const")
_DEFINITIONS = ("$defs", "definitions")
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))


_BESIDE_ROOT = {"$schema", "title", "description", "$comment", *_DEFINITIONS}
_DATA = ("enum", "const", "default", "examples")
BY_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies", *_DEFINITIONS)
Path = tuple[str | int, ...]


class NotExpressible(Exception):
    """A form cannot express a schema. The text says why."""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's form of a schema can express.

    ``narrowing``: the keywords of `_NARROWING` that it has, ``formats`` the values of ``format``. ``closed``:
    an object must have no properties beside those that it lists; ``all_required``: and must have all of them.
    ``object_root``: the answer must be an object.
    """

    narrowing: frozenset[str]
    formats: frozenset[str] = _FORMATS
    most_min_items: int | None = None
    closed: bool = True
    all_required: bool = False
    recursion: bool = True
    prefix_items: bool = False
    object_root: bool = True
    scalar_enums: bool = True

    def has(self, key: str, value: Any) -> bool:
        """Whether it has a narrowing keyword with this value."""
        if key == "format":
            return value in self.formats
        if key == "minItems" and self.most_min_items is not None:
            return isinstance(value, int) and value <= self.most_min_items
        return key in self.narrowing


OPENAI = Form(narrowing=frozenset((*_NUMBERS, "pattern", "minItems", "maxItems")), all_required=True)
"""``response_format`` with ``strict``."""
ANTHROPIC = Form(narrowing=frozenset(), formats=_FORMATS | {"uri"}, most_min_items=1, recursion=False)
"""``output_config.format``."""
GEMINI = Form(
    narrowing=frozenset(("minimum", "maximum", "minItems", "maxItems")),
    formats=frozenset(("date-time", "date", "time")),
    closed=False,
    prefix_items=True,
    object_root=False,
    scalar_enums=False,
)
"""``responseJsonSchema``."""


def in_form(schema: dict[str, Any], form: Form) -> dict[str, Any]:
    """Returns a schema in a provider's form. Raises `NotExpressible`."""
    try:
        return _Conversion(schema, form).whole()
    except RecursionError:
        raise NotExpressible("it is nested too deeply") from None


def has_object_root(schema: dict[str, Any]) -> bool:
    """Whether the root of a schema says of itself that it is an object, and no more than an object."""
    return schema.get("type") == "object" and not any(key in schema for key in ("anyOf", "oneOf", "allOf"))


def with_resolved_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema whose root is not just a reference into its own definitions: pydantic writes such ones
    for models that refer to themselves, and providers want to see an object there."""
    seen = set()
    while isinstance(ref := schema.get("$ref"), str) and ref not in seen:
        seen.add(ref)
        target = definition_of(schema, ref)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        if not isinstance(target, dict) or not beside.keys() <= _BESIDE_ROOT:
            break
        schema = {**target, **beside}
    return schema


def definition_of(schema: dict[str, Any], ref: str) -> Any:
    """Returns the definition that a reference leads to; None if it leads elsewhere."""
    for key in _DEFINITIONS:
        prefix = f"#/{key}/"
        found = schema.get(key)
        if ref.startswith(prefix) and isinstance(found, dict):
            return found.get(_unescaped(ref.removeprefix(prefix)))
    return None


def _unescaped(pointer: str) -> str:
    """The name that a part of a JSON pointer stands for."""
    return pointer.replace("~1", "/").replace("~0", "~")


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields a schema and all that are written in it, each with the keys that lead to it."""
    if isinstance(schema, list):
        for at, each in enumerate(schema):
            yield from subschemas(each, (*path, at))
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, dict):
            for name, each in value.items():
                yield from subschemas(each, (*path, key, name))
        elif key not in _DATA:
            yield from subschemas(value, (*path, key))


class _Conversion:
    """One schema on its way into a form. Definitions are converted where they are first referred to."""

    def __init__(self, schema: dict[str, Any], form: Form) -> None:
        self._root = with_resolved_root(schema)
        self._form = form
        self._definitions: dict[str, Any] = {}
        self._references: dict[str, str] = {}
        self._open: list[str] = []

    def whole(self) -> dict[str, Any]:
        if self._form.object_root and not has_object_root(self._root):
            raise NotExpressible("the answer is not an object")
        self._open.append("#")
        form = self._schema({k: v for k, v in self._root.items() if k not in (*_DEFINITIONS, "$schema")})
        return {**form, "$defs": self._definitions} if self._definitions else form

    def _schema(self, schema: Any) -> dict[str, Any]:
        if not isinstance(schema, dict):
            raise NotExpressible(
                "a part of it allows any value" if schema else "a part of it allows no value"
            )
        schema = _without_single_all_of(schema)
        for key in (*_NOT_IN_FORMS, "allOf"):
            if key in schema:
                raise NotExpressible(f"it has {key}")
        form = self._shape(schema)
        if "title" in schema and "$ref" not in form:
            form["title"] = schema["title"]
        told = _told(schema, form)
        if told and "$ref" in form:
            # Beside a reference, the providers allow nothing else.
            form = {"anyOf": [form]}
        return {**form, "description": told} if told else form

    def _shape(self, schema: dict[str, Any]) -> dict[str, Any]:
        applied = [key for key in ("$ref", "anyOf", "oneOf") if key in schema]
        if not applied:
            return self._values(schema) if "enum" in schema or "const" in schema else self._typed(schema)
        if len(applied) > 1 or any(key in schema for key in _SHAPE):
            raise NotExpressible(f"it has {applied[0]} beside other keywords")
        if applied == ["$ref"]:
            return {"$ref": self._reference(schema["$ref"])}
        return {"anyOf": [self._schema(each) for each in schema[applied[0]]]}

    def _reference(self, ref: str) -> str:
        target = self._root if ref == "#" else definition_of(self._root, ref)
        if target is None:
            raise NotExpressible(f"it refers to {ref[:100]}")
        if ref in self._open and not self._form.recursion:
            raise NotExpressible("it refers to itself")
        if ref == "#":
            return ref
        pointer = ref.rpartition("/")[2]
        name = _unescaped(pointer)
        if self._references.setdefault(name, ref) != ref:
            raise NotExpressible(f"it has two definitions {name[:100]!r}")
        if name not in self._definitions:
            self._open.append(ref)
            self._definitions[name] = {}
            self._definitions[name] = self._schema(target)
            self._open.pop()
        return f"#/$defs/{pointer}"

    def _values(self, schema: dict[str, Any]) -> dict[str, Any]:
        """An enum. Its values are grouped by type, because providers want each type to be named."""
        found = [schema["const"]] if "const" in schema else schema["enum"]
        types, groups = _types_of(schema), dict[str, list[Any]]()
        for value in found:
            kind = _type_of(value)
            if kind in ("object", "array"):
                raise NotExpressible(f"it has an {kind} among the values of an enum")
            if not types or kind in types or (kind == "integer" and "number" in types):
                groups.setdefault(kind, []).append(value)
        if not groups:
            raise NotExpressible("a part of it allows no value")
        forms = [self._enum(kind, values) for kind, values in groups.items()]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def _enum(self, kind: str, values: list[Any]) -> dict[str, Any]:
        if kind == "null" or (kind == "boolean" and not self._form.scalar_enums):
            return {"type": kind}
        return {"type": kind, "enum": values}

    def _typed(self, schema: dict[str, Any]) -> dict[str, Any]:
        types = _types_of(schema) or _implied_types(schema)
        if not types:
            raise NotExpressible("a part of it allows any value")
        form: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
        form |= {key: schema[key] for key in _NARROWING if key in schema and self._form.has(key, schema[key])}
        if "object" in types:
            form |= self._object(schema)
        if "array" in types:
            form |= self._array(schema)
        return form

    def _object(self, schema: dict[str, Any]) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required", [])
        others = schema.get("additionalProperties", properties is None)
        properties = properties or {}
        if self._form.closed and others is not False:
            raise NotExpressible("it has an object with properties that are not listed")
        if self._form.closed and not set(required) <= properties.keys():
            raise NotExpressible("it requires properties that are not listed")
        if self._form.all_required:
            for name in properties.keys() - set(required):
                self._check_may_be_required(name, properties[name])
            required = list(properties)
        form: dict[str, Any] = {"properties": {name: self._schema(each) for name, each in properties.items()}}
        if self._form.closed:
            return {**form, "required": list(required), "additionalProperties": False}
        form = form if properties else {}
        if "additionalProperties" in schema:
            form["additionalProperties"] = others if isinstance(others, bool) else self._schema(others)
        return {**form, "required": list(required)} if required else form

    def _check_may_be_required(self, name: str, schema: Any) -> None:
        if not (isinstance(schema, dict) and "default" in schema) and not self._takes_null(schema, 0):
            raise NotExpressible(f"the property {name[:100]!r} may be left out, and must not be null")

    def _takes_null(self, schema: Any, depth: int) -> bool:
        if not isinstance(schema, dict) or depth > 20:
            return False
        if isinstance(schema.get("$ref"), str):
            return self._takes_null(definition_of(self._root, schema["$ref"]), depth + 1)
        branches = [each for key in ("anyOf", "oneOf") for each in schema.get(key, ())]
        if branches:
            return any(self._takes_null(each, depth + 1) for each in branches)
        if "enum" in schema:
            return None in schema["enum"]
        return "null" in _types_of(schema) or ("const" in schema and schema["const"] is None)

    def _array(self, schema: dict[str, Any]) -> dict[str, Any]:
        first, others = schema.get("prefixItems"), schema.get("items")
        if not first:
            if others is False:
                raise NotExpressible("it has an array that must be empty")
            return {"items": self._schema(others if others is not None else True)}
        ends = others is False or schema.get("maxItems", len(first) + 1) <= len(first)
        if not ends and others is None:
            raise NotExpressible("a part of it allows any value")
        rest = [] if ends else [self._schema(others)]
        parts = [self._schema(each) for each in first]
        most = {"maxItems": len(first)} if others is False and self._form.has("maxItems", 0) else {}
        if self._form.prefix_items:
            return {"prefixItems": parts, **({"items": rest[0]} if rest else {}), **most}
        distinct = [each for at, each in enumerate(parts + rest) if each not in (parts + rest)[:at]]
        return {"items": distinct[0] if len(distinct) == 1 else {"anyOf": distinct}, **most}


def _without_single_all_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose ``allOf`` has one element is that element, if they say nothing of the same."""
    inner = schema.get("allOf")
    if not isinstance(inner, list) or len(inner) != 1 or not isinstance(inner[0], dict):
        return schema
    rest = {key: value for key, value in schema.items() if key != "allOf"}
    return schema if rest.keys() & inner[0].keys() else {**inner[0], **rest}


def _told(schema: dict[str, Any], form: dict[str, Any]) -> str:
    """The description of a schema, with the keywords that its form lacks: the model may follow them."""
    left_out = {key: schema[key] for key in _TOLD if key in schema and key not in form}
    said = [str(schema["description"])] if schema.get("description") else []
    told = ", ".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in left_out.items())
    return "\n\n".join([*said, f"({told})"] if told and len(told) <= MOST_TOLD else said)


def _types_of(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _implied_types(schema: dict[str, Any]) -> list[str]:
    if any(key in schema for key in ("properties", "required", "additionalProperties")):
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else []


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


# -- as the arguments of a tool


RESULT = "result"
"""The argument that holds an answer which is not an object."""


def as_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the input schema of a tool whose arguments are the answer; or, if that need not be an object,
    have it as their `RESULT`."""
    schema = {key: value for key, value in with_resolved_root(schema).items() if key != "$schema"}
    return schema if has_object_root(schema) else as_result(schema)


def as_result(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the input schema of a tool that has the answer as its `RESULT`."""
    schema = {key: value for key, value in schema.items() if key != "$schema"}
    if "$id" in schema:  # its references are relative to that
        return _wrapped(schema)
    # The providers want definitions at the root. What else refers to the root has moved.
    schema = _with_moved_references(schema)
    inner = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    return {**_wrapped(inner), **{key: schema[key] for key in _DEFINITIONS if key in schema}}


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "object", "properties": {RESULT: schema}, "required": [RESULT]}
    return {**form, "additionalProperties": False}


def _with_moved_references(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_moved_references(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _moved(key, value) for key, value in schema.items()}


def _moved(key: str, value: Any) -> Any:
    if key in _DATA:
        return value
    if key in BY_NAME and isinstance(value, dict):
        return {name: _with_moved_references(each) for name, each in value.items()}
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        stays = value[1:].startswith(("/$defs/", "/definitions/"))
        return value if stays else f"#/properties/{RESULT}{value[1:]}"
    return _with_moved_references(value)
