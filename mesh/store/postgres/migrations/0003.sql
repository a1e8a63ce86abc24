-- A clock of the database that goes back: what a host did in the future counts as done now. Without that the
-- lease of a host that died would last as long as the clock takes to catch up.
create or replace function {schema}.renew_1(
    agent_id int, host_id text, its_name text, its_generation int, its_address text, its_port int,
    its_secret bytea, leaves boolean, lease interval, gap interval
) returns text language plpgsql as $$
declare
    now timestamptz := clock_timestamp();
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into {schema}.host as h (
        agent, id, name, generation, address, port, secret, is_leaving, renewed_at, steady_since
    ) values (
        agent_id, host_id, its_name, its_generation, its_address, its_port, its_secret, leaves, now, now
    ) on conflict (agent, id) do update set
        is_leaving = excluded.is_leaving,
        steady_since = case
            when now - h.renewed_at > gap or h.renewed_at > now or h.steady_since > now then now
            else h.steady_since
        end,
        renewed_at = now;
    -- Those that another statement is about are left to it, here and below.
    update {schema}.host h set renewed_at = clock_timestamp() where h.agent = agent_id and h.id in (
        select g.id from {schema}.host g
        where g.agent = agent_id and g.renewed_at > clock_timestamp() for update skip locked
    );
    -- Hosts that are gone and have nothing.
    delete from {schema}.host h where h.agent = agent_id and h.id in (
        select g.id from {schema}.host g
        where g.agent = agent_id and g.renewed_at < now - lease
            and not exists (select from {schema}.shard s where s.agent = agent_id and s.host = g.id)
        for update skip locked
    );
    return {schema}.map_1(agent_id, host_id, lease);
end $$;

-- Locks the shards in the order of their numbers, as a claim does: neither waits for the other.
create or replace function {schema}.release_1(agent_id int, host_id text) returns void language sql as $$
    update {schema}.shard set host = '' where agent = agent_id and number in (
        select number from {schema}.shard where agent = agent_id and host = host_id order by number for update
    );
    delete from {schema}.host where agent = agent_id and id = host_id;
$$;
