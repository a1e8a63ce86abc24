"""One side of `bench.compare`, run in another checkout: it uses that checkout's mesh, bench and tests.

It writes a line when its mesh is up, then reads the load of each round (clients and turns), and writes its
figures, one JSON object a line.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))

import uvloop

from bench.figures import measured
from bench.load import Load
from bench.trees import LATENCY_S, parallel
from bench.world import World, running


async def _figures(world: World, clients: int, turns: int) -> Any:
    load = Load(world.mesh.port, clients)
    await load.warm(1)
    try:
        _, figures = await measured(world, lambda: load.run(turns))
        return figures
    finally:
        load.close()


def main() -> None:
    shape = sys.argv[1]
    tree = parallel(int(shape)) if shape.isdecimal() and int(shape) > 1 else None
    with (
        tempfile.TemporaryDirectory() as scratch,
        running(Path(scratch) / "mesh", latency_s=LATENCY_S, tree=tree, with_tools=shape == "tool") as (
            world,
            took,
        ),
    ):
        print(json.dumps({"start_s": round(took, 1)}), flush=True)
        for line in sys.stdin:
            clients, turns = map(int, line.split())
            print(json.dumps(uvloop.run(_figures(world, clients, turns))), flush=True)


if __name__ == "__main__":
    main()
