"""openai-agents: one run for each item, under ``asyncio.gather``, as its documentation does."""

import asyncio

import httpx
from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
from timed import timed

set_tracing_disabled(True)


async def work(url: str, count: int) -> int:
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    http = httpx.AsyncClient(limits=limits, timeout=120)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)
    model = OpenAIChatCompletionsModel(model="stub", openai_client=client)
    agents = [Agent(name="visit", instructions=f"Visit city {n}.", model=model) for n in range(count)]
    done = await asyncio.gather(*(Runner.run(agent, "go") for agent in agents))
    await http.aclose()
    return sum(bool(each.final_output) for each in done)


timed(work)
