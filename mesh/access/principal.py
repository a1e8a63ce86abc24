"""Who sent a request, once that was proved. Today a name; roles and the like have their place here."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

KEY_PREFIX = "mk_"
"""How every API key of a mesh begins."""
_IN_SCOPE = "mesh.principal"


class Principal(msgspec.Struct, frozen=True):
    """``name`` is that of an API key, and what the journal records."""

    name: str


def bearer_in(authorization: str) -> str:
    """The token of an Authorization header; empty: it has none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_key(token: str) -> bool:
    """Whether a token is an API key of some mesh, and so never to be passed on to anybody."""
    return token.startswith(KEY_PREFIX)


def put(scope: MutableMapping[str, Any], principal: Principal | None) -> None:
    """Notes in an ASGI scope who asks. None: nobody proved who they are, although this mesh asks for it."""
    scope[_IN_SCOPE] = principal


def principal_in(scope: Mapping[str, Any]) -> Principal | None:
    """Who asks; None: that is not known."""
    found: Principal | None = scope.get(_IN_SCOPE)
    return found


def is_stranger(scope: Mapping[str, Any]) -> bool:
    """Whether this mesh asks for keys and the request has none. Without keys nobody is a stranger."""
    return _IN_SCOPE in scope and scope[_IN_SCOPE] is None
