-- Which keeper host has which shard.

alter table {schema}.agent
    add column generation int not null default 0,
    add column generation_digest text not null default '';

-- `host` is the id of the host that has the shard, empty if nobody has it. Whether it has opened it, `holder` and
-- `epoch` say.
alter table {schema}.shard add column host text not null default '';

-- `joined` grows with each host. `steady_since`: from then on the database has answered the host without a gap.
create table {schema}.host (
    agent int not null references {schema}.agent,
    id text not null,
    joined bigint generated always as identity,
    name text not null,
    generation int not null,
    address text not null,
    port int not null,
    secret bytea not null,
    is_leaving boolean not null,
    renewed_at timestamptz not null,
    steady_since timestamptz not null,
    primary key (agent, id)
);

-- All shards and hosts, as JSON. Without a host the map is not steady.
create function {schema}.map_1(agent_id int, host_id text, lease interval) returns text language plpgsql as $$
declare
    now timestamptz := clock_timestamp();
begin
    return json_build_object(
        'held_by', (
            select json_agg(coalesce(s.host, '') order by n.number)
            from {schema}.agent a cross join generate_series(0, a.shards - 1) n (number)
            left join {schema}.shard s on s.agent = a.id and s.number = n.number
            where a.id = agent_id
        ),
        'hosts', (
            select coalesce(json_agg(json_build_object(
                'id', h.id, 'joined', h.joined, 'name', h.name, 'generation', h.generation, 'address', h.address,
                -- Without the line breaks of base64 in PostgreSQL, which JSON's does not have.
                'port', h.port, 'secret', translate(encode(h.secret, 'base64'), chr(10), ''),
                'is_leaving', h.is_leaving,
                'expires_in_s', extract(epoch from h.renewed_at + lease - now)
            )), '[]') from {schema}.host h where h.agent = agent_id
        ),
        'is_steady', exists (
            select from {schema}.host h
            where h.agent = agent_id and h.id = host_id and now - h.steady_since >= lease
        )
    )::text;
end $$;

-- Notes that a host lives, and returns the map. It is seconds until that is noted again, so nobody waits for the
-- disk.
create function {schema}.renew_1(
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
        steady_since = case when now - h.renewed_at > gap then now else h.steady_since end,
        renewed_at = now;
    -- Hosts that are gone and have nothing; those that another statement is about are left to it.
    delete from {schema}.host h where h.agent = agent_id and h.id in (
        select g.id from {schema}.host g
        where g.agent = agent_id and g.renewed_at < now - lease
            and not exists (select from {schema}.shard s where s.agent = agent_id and s.host = g.id)
        for update skip locked
    );
    return {schema}.map_1(agent_id, host_id, lease);
end $$;

-- Gives shards to a host, each if it is still with the host that is named for it. Returns those that it has then.
create function {schema}.claim_1(agent_id int, host_id text, numbers int[], ofs text[]) returns setof int
language plpgsql as $$
begin
    perform 1 from {schema}.host h where h.agent = agent_id and h.id = host_id for key share;
    if not found then
        return;
    end if;
    for place in 1..cardinality(numbers) loop
        insert into {schema}.shard as s values (agent_id, numbers[place], 0, '', host_id)
            on conflict (agent, number) do update set host = excluded.host
            where s.host in (ofs[place], host_id);
        if found then
            return next numbers[place];
        end if;
    end loop;
end $$;

create function {schema}.release_1(agent_id int, host_id text) returns void language sql as $$
    update {schema}.shard set host = '' where agent = agent_id and host = host_id;
    delete from {schema}.host where agent = agent_id and id = host_id;
$$;
