"""The outline of a tree: its nodes and their paths, as clients are shown them."""

import msgspec

from mesh.config.model import Config
from mesh.tree.plan import PlannedNode, tree_of


class Outline(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node and the nodes below it. ``path`` is its node path, such as ``0.2``."""

    name: str
    type: str
    path: str
    description: str = ""
    model: str = ""
    agents: "tuple[Outline, ...]" = ()


def outline(config: Config) -> Outline:
    """The whole tree of a config."""
    return _outline(config, tree_of(config))


def _outline(config: Config, planned: PlannedNode) -> Outline:
    node = planned.node
    model = (node.model or config.llm.model) if node.type == "llm" else ""
    below = tuple(_outline(config, child) for child in planned.children)
    return Outline(node.name, node.type, planned.path, node.description, model, below)
