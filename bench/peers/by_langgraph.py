"""LangGraph: a node that sends each item to the next one, as its documentation of map-reduce does."""

import operator
from typing import Annotated, Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from timed import timed


class State(TypedDict):
    items: list[str]
    answers: Annotated[list[str], operator.add]


async def work(url: str, count: int) -> int:
    model = ChatOpenAI(model="stub", base_url=f"{url}/v1", api_key="none", max_retries=0)

    async def visit(item: dict[str, str]) -> dict[str, Any]:
        said = await model.ainvoke([("system", f"Visit {item['item']}."), ("user", "go")])
        return {"answers": [said.content]}

    def fan_out(state: State) -> list[Send]:
        return [Send("visit", {"item": item}) for item in state["items"]]

    graph = StateGraph(State)
    graph.add_node("visit", visit)
    graph.add_conditional_edges(START, fan_out, ["visit"])
    graph.add_edge("visit", END)
    items = [f"city {n}" for n in range(count)]
    found = await graph.compile().ainvoke({"items": items, "answers": []}, {"max_concurrency": count})
    return len(found["answers"])


timed(work)
