"""The types of single values in a config: names, URLs, times, sizes, and what makes them valid."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, Strict
from pydantic_core import PydanticCustomError

from mesh.net.origin import as_origin, is_address, is_name


def _directory(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise PydanticCustomError("path", "expected a directory; the user after ~ is not known") from error


def _http_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise PydanticCustomError("url", "expected a URL that starts with http:// or https://")
    return url


def _database_url(url: str) -> str:
    if not url.startswith(("postgres://", "postgresql://")):
        raise PydanticCustomError(
            "database_url", "expected a URL of PostgreSQL, such as postgres://user:${PASSWORD}@host:5432/name"
        )
    return url


def _network(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError as error:
        raise PydanticCustomError("network", "expected an address or network, such as 10.0.0.0/8") from error
    return text


def _host_name(text: str) -> str:
    name = text.lower().rstrip(".")
    if not (is_name(name) or is_address(name.strip("[]"))):
        raise PydanticCustomError(
            "host", "expected a name such as agents.example.com, without scheme and port"
        )
    return name


def _origin(text: str) -> str:
    if not (origin := as_origin(text)):
        raise PydanticCustomError(
            "origin", "expected an origin such as https://app.example.com, without a path; * is not possible"
        )
    return origin


def _security_scheme(scheme: dict[str, Any]) -> dict[str, Any]:
    # Imported here: it costs a fifth of a second, and few configs have a security scheme.
    from a2a.types.a2a_pb2 import SecurityScheme
    from google.protobuf.json_format import ParseDict, ParseError

    try:
        ParseDict(scheme, SecurityScheme())
    except ParseError as error:
        raise PydanticCustomError(
            "security",
            "expected a security scheme of A2A 1.0, such as {httpAuthSecurityScheme: {scheme: Bearer}}",
        ) from error
    return scheme


T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]
"""A list in the file. `Strict` would refuse it for a tuple, which is frozen as the models are."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
Text = Annotated[str, Field(min_length=1)]
Url = Annotated[str, AfterValidator(_http_url)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
Network = Annotated[str, AfterValidator(_network)]
HostName = Annotated[str, AfterValidator(_host_name)]
Origin = Annotated[str, AfterValidator(_origin)]
Directory = Annotated[Path, Strict(False), AfterValidator(_directory)]
SecurityScheme = Annotated[dict[str, Any], AfterValidator(_security_scheme)]
ApiKey = Annotated[str, Field(pattern=r"^[\x21-\x7e]{0,200}$")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Usd = Annotated[float, Field(ge=0, le=1_000_000)]
Bytes = Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
