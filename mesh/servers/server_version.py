"""The version that servers tell their clients. It is read once, before a server confines itself."""

from importlib.metadata import version

VERSION = version("mesh")
