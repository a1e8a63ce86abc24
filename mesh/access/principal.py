"""The principal of a request: who sent it, as proved by an API key."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

KEY_PREFIX = "mk_"
"""How every API key of a mesh begins."""
_IN_SCOPE = "mesh.principal"


class Principal(msgspec.Struct, frozen=True):
    """``name`` is the name of an API key. The journal records it with what the principal did."""

    name: str


def bearer_in(authorization: str) -> str:
    """Returns the bearer token in an Authorization header, or an empty text if it has none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_key(token: str) -> bool:
    """Returns whether a token is an API key of some mesh. Such a token must not be passed on to anybody."""
    return token.startswith(KEY_PREFIX)


def set_principal(scope: MutableMapping[str, Any], principal: Principal | None) -> None:
    """Stores the principal in an ASGI scope, or None if this mesh asks for keys and the request has none."""
    scope[_IN_SCOPE] = principal


def principal_in(scope: Mapping[str, Any]) -> Principal | None:
    """Returns the principal in an ASGI scope, or None if it is not known."""
    found: Principal | None = scope.get(_IN_SCOPE)
    return found


def is_unauthenticated(scope: Mapping[str, Any]) -> bool:
    """Returns whether this mesh asks for keys and the request has none."""
    return _IN_SCOPE in scope and scope[_IN_SCOPE] is None
