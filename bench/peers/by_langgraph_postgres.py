"""LangGraph: a chat of one node whose threads are in PostgreSQL, by its own checkpointer, as its docs on
persistence show.

It serves `bench.stores`, which writes a line for each round: how many clients, how many turns of each, and
"anew" if they begin new threads. The answer is a line of JSON: the seconds of the round, its CPU seconds, and
the latency of each turn.
"""

import asyncio
import json
import sys
import time
from typing import Any
from uuid import uuid4

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

CONNECTIONS = 20


def chat(port: str, saver: AsyncPostgresSaver) -> Any:
    model = ChatOpenAI(model="stub", base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([("system", "You are measured."), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


async def client(graph: Any, thread: str, turns: int) -> list[float]:
    seen = []
    for _ in range(turns):
        begun = time.perf_counter()
        said = {"messages": [("user", "hello")]}
        await graph.ainvoke(said, {"configurable": {"thread_id": thread}})
        seen.append(time.perf_counter() - begun)
    return seen


async def main(port: str, url: str) -> None:
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    threads: list[str] = []
    async with AsyncConnectionPool(url, min_size=4, max_size=CONNECTIONS, kwargs=settings) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        graph = chat(port, saver)
        while line := await asyncio.to_thread(sys.stdin.readline):
            clients, turns, *anew = line.split()
            if anew:
                threads = [str(uuid4()) for _ in range(int(clients))]
            begun, used = time.perf_counter(), time.process_time()
            seen = await asyncio.gather(*(client(graph, thread, int(turns)) for thread in threads))
            latencies = [latency for each in seen for latency in each]
            figures = {"wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - used}
            print(json.dumps({**figures, "latencies": latencies}), flush=True)


asyncio.run(main(*sys.argv[1:]))
