"""Writes plain data as the text of a config, which `mesh.config.yaml_tree` reads as the same data."""

from typing import Any

import yaml

from mesh.config.yaml_tree import typed


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    # PyYAML quotes what would be another type by YAML 1.1. A config is read by the core schema of YAML 1.2.
    # Some characters end a line by YAML 1.1 and not by 1.2: within quotes they are escaped.
    if not text.replace("\n", "").isprintable() or typed(text) != text:
        return '"'
    return "|" if "\n" in text else None


_Dumper.add_representer(str, _text)


def yaml_text(data: Any) -> str:
    """Returns the text for dicts, lists and scalars."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
