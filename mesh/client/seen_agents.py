"""The agents that `MeshClient.follow_agents` has told of, up to date. Pure."""

from collections.abc import Iterable

from mesh.client.responses import AgentsSnapshot
from mesh.core.agents_of_turn import AgentView


class SeenAgents:
    """The agents that were seen of a stream of them, by id; ``keeps_ended``: also those that have ended."""

    def __init__(self, *, keeps_ended: bool) -> None:
        self.agents: dict[str, AgentView] = {}
        self._keeps_ended = keeps_ended

    def take(self, change: AgentsSnapshot | AgentView) -> Iterable[AgentView]:
        """Takes what is new. Returns the agents that it tells of."""
        if isinstance(change, AgentsSnapshot):
            ended = {id: agent for id, agent in self.agents.items() if agent.has_ended}
            self.agents = {**ended, **change.agents}
            told = list(change.agents.values())
        else:
            self.agents[change.agent_id] = change
            told = [change]
        for agent in told:
            if agent.has_ended and not self._keeps_ended:
                del self.agents[agent.agent_id]
        return told
