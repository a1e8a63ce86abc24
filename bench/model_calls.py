"""``python -m bench.model_calls [openai anthropic gemini]``: CPU of one model call, in this process alone.

Compares the product's provider with other ways to make the same call, against ``mesh llm-stub`` in a process
of its own: 32 calls at a time, a conversation of 1 and of 41 messages, plain and streamed. The least of three
rounds is shown, since whatever else the machine does can only add to it.
"""

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx2
import msgspec
import openai
import uvloop
from google import genai

from mesh.core.messages import Assistant, User
from mesh.llm.http import LlmHttp
from mesh.llm.port import LlmRequest
from mesh.llm.routing import provider_for
from tests.worlds.providers import FORMATS, MODELS, env_for

_AT_ONCE = 32
_CALLS = 320
_ROUNDS = 3
_LIMITS = httpx2.Limits(max_connections=4096, max_keepalive_connections=4096)
_SDKS: dict[str, Any] = {"openai": openai, "anthropic": anthropic}

Call = Callable[[LlmRequest], Awaitable[Any]]
Close = Callable[[], Awaitable[Any]]


async def of_the_product(wire: str, url: str) -> tuple[Call, Close]:
    llm = provider_for(MODELS[wire], env_for(url))

    async def call(request: LlmRequest) -> None:
        async for _ in llm.stream(request):
            pass

    return call, llm.close


async def typed(wire: str, url: str, http: httpx2.AsyncClient, *, raw: bool) -> tuple[Call, Close]:
    """The SDK's typed methods: ``create``, or ``with_raw_response.create`` and msgspec."""
    client: Any
    if wire == "openai":
        client = openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0, http_client=http)
        methods = client.chat.completions
    else:
        client = anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0, http_client=http)
        methods = client.messages

    async def call(request: LlmRequest) -> None:
        body = {**_body(wire, request), "timeout": 60.0}
        if request.deltas:
            async for _ in await methods.create(**body):
                pass
        elif raw:
            response = await methods.with_raw_response.create(**body)
            msgspec.json.decode(response.http_response.content)
        else:
            await methods.create(**body)

    return call, client.close


async def google(url: str, *, extra_body: bool) -> tuple[Call, Close]:
    """Google's SDK with typed answers; the request typed too, or given as ``extra_body``."""
    http = LlmHttp()
    options = genai.types.HttpOptions(base_url=url, httpx_async_client=http)
    client = genai.Client(api_key="k", vertexai=False, http_options=options)
    alone = {"automatic_function_calling": {"disable": True}, "automatic_continuation": False}

    async def call(request: LlmRequest) -> None:
        body = _body("gemini", request)
        given: dict[str, Any] = {"model": "m", **body, "config": alone}
        if extra_body:
            http_options = genai.types.HttpOptions(extra_body=body)
            given |= {"contents": ".", "config": {**alone, "http_options": http_options}}
        if request.deltas:
            async for _ in await client.aio.models.generate_content_stream(**given):
                pass
        else:
            await client.aio.models.generate_content(**given)

    return call, http.aclose


async def without_sdk(wire: str, url: str) -> tuple[Call, Close]:
    """The least that a call can cost with aiohttp."""
    session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
    method = "streamGenerateContent?alt=sse", "generateContent"
    paths = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}

    async def call(request: LlmRequest) -> None:
        path = paths.get(wire) or f"/v1beta/models/m:{method[not request.deltas]}"
        async with session.post(url + path, data=msgspec.json.encode(_body(wire, request))) as response:
            body = await response.read()
            if not request.deltas:
                msgspec.json.decode(body)

    return call, session.close


def _body(wire: str, request: LlmRequest) -> dict[str, Any]:
    said = [("user" if isinstance(each, User) else "assistant", each.text) for each in request.messages]  # type: ignore[union-attr]
    if wire == "gemini":
        return {"contents": [{"role": role, "parts": [{"text": text}]} for role, text in said]}
    messages = [{"role": role, "content": text} for role, text in said]
    stream = {"stream": True} if request.deltas else {}
    if wire == "openai":
        system = {"role": "system", "content": request.system}
        return {"model": "m", "messages": [system, *messages], **stream}
    return {"model": "m", "max_tokens": 4096, "system": request.system, "messages": messages, **stream}


def candidates(wire: str, url: str) -> dict[str, Awaitable[tuple[Call, Close]]]:
    found: dict[str, Awaitable[tuple[Call, Close]]] = {"the product's provider": of_the_product(wire, url)}
    if sdk := _SDKS.get(wire):
        aiohttp_client = sdk.DefaultAioHttpClient
        found |= {
            "with_raw_response, our HTTP client": typed(wire, url, LlmHttp(), raw=True),
            "typed create, DefaultAioHttpClient": typed(wire, url, aiohttp_client(limits=_LIMITS), raw=False),
            "typed create, httpx2": typed(wire, url, sdk.DefaultAsyncHttpxClient(limits=_LIMITS), raw=False),
        }
    else:
        found |= {
            "SDK, typed": google(url, extra_body=False),
            "SDK, extra_body, typed answers": google(url, extra_body=True),
        }
    return found | {"aiohttp, no SDK": without_sdk(wire, url)}


async def cpu_ms(made: Awaitable[tuple[Call, Close]], request: LlmRequest) -> float:
    call, close = await made

    async def calls(number: int) -> None:
        for _ in range(number):
            await call(request)

    async def everybody(number: int) -> None:
        await asyncio.gather(*(calls(number) for _ in range(_AT_ONCE)))

    await everybody(2)
    gc.collect()
    least = float("inf")
    for _ in range(_ROUNDS):
        started = time.process_time()
        await everybody(_CALLS // _AT_ONCE)
        least = min(least, time.process_time() - started)
    await close()
    return 1000 * least / _CALLS


def conversation(wire: str, turns: int, *, deltas: bool) -> LlmRequest:
    said = (User("A question, to be answered with a few words"), Assistant("An answer of a few words. " * 5))
    return LlmRequest(
        model=MODELS[wire], system="Be brief.", messages=(*said * turns, User("Hello")), deltas=deltas
    )


async def compare(wires: list[str], url: str) -> None:
    for wire in wires:
        for turns in (0, 20):
            for deltas in (False, True):
                request = conversation(wire, turns, deltas=deltas)
                what = f"{wire:9} {'stream' if deltas else 'plain':6} {len(request.messages):2} messages"
                for name, made in candidates(wire, url).items():
                    print(f"{what}  {name:36} {await cpu_ms(made, request):5.2f} ms", flush=True)


def main() -> None:
    mesh = str(Path(sys.executable).with_name("mesh"))
    with subprocess.Popen([mesh, "llm-stub", "--port", "0"], stdout=subprocess.PIPE, text=True) as stub:
        assert stub.stdout is not None
        uvloop.run(compare(sys.argv[1:] or FORMATS, stub.stdout.readline().split()[-1]))
        stub.terminate()


if __name__ == "__main__":
    main()
