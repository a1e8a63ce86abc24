"""What tests of tools and providers need.

`call` and `FakeContext` are for tools (`mesh.testing.tool_calls`); `mesh.testing.provider_promises` is for
providers.
"""

from mesh.testing.tool_calls import FakeContext, InvalidArguments, call

__all__ = ["FakeContext", "InvalidArguments", "call"]
