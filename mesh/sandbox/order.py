"""What the server orders from its launcher: one command, with all that it needs, and what came of it.

It goes from one process to another as JSON. A path that is not UTF-8 has surrogates in it, which JSON
carries as escapes.
"""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class CommandLimits:
    """``memory``: bytes of all processes together. ``file_size``: bytes of one file. Where 0 is no limit:
    ``address_space``: bytes of one process; ``cpu_s``: seconds of one process; ``temporary``: bytes in the
    folder for temporary files that the command was given."""

    memory: int = 2 << 30
    processes: int = 256
    file_size: int = 1 << 30
    address_space: int = 0
    cpu_s: int = 0
    temporary: int = 0


@dataclass(frozen=True)
class Restriction:
    """What Landlock and seccomp leave to a command: paths with what may be done there, and the network."""

    paths: tuple[tuple[str, int], ...]
    network: bool


@dataclass(frozen=True)
class Order:
    """``wrappers``: how many processes of the sandbox are between the command guard and the command; signals
    do not go to them. ``filter_at``: the descriptor where the sandbox reads its filter of system calls.
    ``temporary``: the folder for temporary files that the command was given. ``has_fixed_addresses``: the
    kernel lays out the memory of each such process alike."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    timeout_s: float
    limits: CommandLimits
    restriction: Restriction | None = None
    wrappers: int = 0
    filter_at: int | None = None
    temporary: str = ""
    has_fixed_addresses: bool = False

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True)
class End:
    """``status``: as `os.waitstatus_to_exitcode` gives it; None if even SIGKILL did not end the command.
    ``stopped``: why it was stopped, if it did not end by itself."""

    status: int | None
    stopped: str = ""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def order_of(text: bytes) -> Order:
    data = json.loads(text)
    restriction = data["restriction"]
    if restriction is not None:
        paths = tuple((path, access) for path, access in restriction["paths"])
        restriction = Restriction(paths, restriction["network"])
    fields = {**data, "argv": tuple(data["argv"]), "limits": CommandLimits(**data["limits"])}
    return Order(**{**fields, "restriction": restriction})


def end_of(text: bytes) -> End:
    return End(**json.loads(text))
