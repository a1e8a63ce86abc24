"""Google's ADK: a parallel agent with one sub-agent for each item. Its width is that of the tree, so that the
tree is made anew, which is counted; it speaks to the model as Gemini does."""

from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.agents.run_config import RunConfig
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import Client, types
from timed import timed


class Stub(Gemini):
    """Its client goes to another server."""

    url: str

    @property
    def api_client(self) -> Client:
        if self._made is None:
            options = types.HttpOptions(base_url=self.url)
            self._made = Client(api_key="none", vertexai=False, http_options=options)
        return self._made

    _made: Client | None = None


async def work(url: str, count: int) -> int:
    model = Stub(model="gemini-stub", url=url)
    agents = [LlmAgent(name=f"visit_{n}", instruction=f"Visit city {n}.", model=model) for n in range(count)]
    runner = InMemoryRunner(agent=ParallelAgent(name="all", sub_agents=agents), app_name="bench")
    session = await runner.session_service.create_session(app_name="bench", user_id="u")
    said = types.Content(role="user", parts=[types.Part(text="go")])
    answered = 0
    ids = {"user_id": "u", "session_id": session.id}
    config = RunConfig(max_llm_calls=0)
    async for event in runner.run_async(**ids, new_message=said, run_config=config):
        answered += event.is_final_response()
    return answered


timed(work)
