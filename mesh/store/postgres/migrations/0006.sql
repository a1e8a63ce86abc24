-- The suffix first. While a table has no statistics yet, the planner takes all indexes that begin with the agent for
-- equally good, and looked a conversation up in the one of the suffixes: among all of the agent's.
create index on {schema}.conversation (suffix, agent);
drop index {schema}.conversation_agent_suffix_idx;
