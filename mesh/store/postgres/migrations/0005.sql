-- The timeline of the database, which is another one after a failover; empty where the server does not tell it.
create function {schema}.timeline_1() returns text language plpgsql as $$
begin
    return left(pg_walfile_name(pg_current_wal_lsn()), 8);
exception when others then
    return '';
end $$;

-- As before, with the timeline.
create or replace function {schema}.map_1(agent_id int, host_id text, lease interval) returns text language plpgsql as $$
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
        ),
        'timeline', {schema}.timeline_1()
    )::text;
end $$;
