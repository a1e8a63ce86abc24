# mypy: ignore-errors
"""google-adk's `RemoteA2aAgent`. Argument: URL of the agent.

It knows conversations, not tasks: what is said in one whose task waits goes to that task. So there is one
verb, ``send`` {text, talk}; what comes is what the person would read.
"""

import asyncio
import sys
import warnings

warnings.simplefilter("ignore")

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402
from lines import serve  # noqa: E402

USER = "somebody"


def of_event(event):
    parts = event.content.parts if event.content and event.content.parts else ()
    told = (event.custom_metadata or {}).get("a2a:response", {})
    state = told.get("status", {}).get("state", "")
    return {
        "kind": "task",
        "task": (event.custom_metadata or {}).get("a2a:task_id", ""),
        "state": state.removeprefix("TASK_STATE_").lower().replace("_", "-"),
        "text": "".join(part.text or "" for part in parts if not part.thought),
        "error": event.error_message,
    }


async def main(url):
    agent = RemoteA2aAgent("remote", agent_card=f"{url}/.well-known/agent-card.json")
    runner = InMemoryRunner(agent=agent, app_name="interop")
    talks = {}

    async def verbs(asked):
        name = asked["talk"]
        if name not in talks:
            talks[name] = await runner.session_service.create_session(app_name="interop", user_id=USER)
        content = types.Content(role="user", parts=[types.Part(text=asked["text"])])
        async for event in runner.run_async(user_id=USER, session_id=talks[name].id, new_message=content):
            yield {key: value for key, value in of_event(event).items() if value is not None}

    await serve(verbs)


asyncio.run(main(*sys.argv[1:]))
