-- The id first, and newer than all other indexes. Where a table has no statistics yet, the planner takes all indexes that
-- can find a row for equally good, and of these the newest: it looked conversations up among all of the agent's.
-- Appends wait meanwhile, for some seconds a million conversations.
alter table {schema}.conversation drop constraint conversation_pkey;
alter table {schema}.conversation add constraint conversation_pkey primary key (id, agent);

-- As `append_1`, with all rows of a table in one statement: opening a table with its indexes costs more than a row in
-- them. No two of the appends are to the same conversation. The plan is made once, maybe while the tables are empty.
create function {schema}.append_2(
    agent_id int, shards int[], epochs bigint[], holders text[], ids uuid[], afters int[], appends text[],
    sizes int[], lines text[], entries text[], suffixes text[], created text[], updated text[],
    statuses text[], states text[], contexts text[], needs boolean[], expiries text[], askings text[]
) returns setof text language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off as $$
begin
    -- In the order of the numbers, so that two statements cannot wait for each other.
    perform 1 from {schema}.shard s where s.agent = agent_id and s.number = any(shards)
        order by s.number for share;
    -- A new statement, and so a new snapshot: it sees who has opened the shard before the lock was granted.
    return query with given as (
        select *, sum(size) over (order by place) - size as first
        from unnest(
            shards, epochs, holders, ids, afters, appends, sizes, entries, suffixes, created, updated, statuses,
            states, contexts, needs, expiries, askings
        ) with ordinality as g (
            shard, epoch, holder, id, after, append, size, entry, suffix, created_at, updated_at, status,
            turn_state, context, needs_pass, expires_at, asking, place
        )
    ), judged as materialized (
        select g.*, known.status as known_status, case
            when not exists (
                select from {schema}.shard s where s.agent = agent_id and s.number = g.shard
                    and s.epoch = g.epoch and s.holder = g.holder
            ) then 'stale'
            when known.append = g.append then 'done'
            when coalesce(known.seq, 0) <> g.after then coalesce(known.seq, 0)::text
            else 'next'
        end as outcome
        -- Limited, so that each is looked up by its key, and the table is not joined as a whole.
        from given g left join lateral (
            select c.seq, c.append, c.status from {schema}.conversation c
            where c.agent = agent_id and c.id = g.id limit 1
        ) known on true
    ), journaled as (
        insert into {schema}.event
            select agent_id, j.id, j.after + n, lines[j.first + n]
            from judged j cross join generate_series(1, j.size) n where j.outcome = 'next'
    ), listed as (
        insert into {schema}.conversation
            select agent_id, j.id, j.shard, j.after + j.size, j.append, j.entry, j.suffix, j.created_at,
                j.updated_at, j.status, j.turn_state, j.context, j.needs_pass, j.expires_at,
                string_to_array(j.asking, chr(10))
            from judged j where j.outcome = 'next'
        on conflict (agent, id) do update set
            seq = excluded.seq, append = excluded.append, entry = excluded.entry,
            updated_at = excluded.updated_at, status = excluded.status, turn_state = excluded.turn_state,
            context = excluded.context, needs_pass = excluded.needs_pass, expires_at = excluded.expires_at,
            asking = excluded.asking
    ), counted as (
        insert into {schema}.tally
            select agent_id, moved.shard, moved.status, sum(moved.count)
            from (
                select j.shard, j.status, 1 as count from judged j
                    where j.outcome = 'next' and j.known_status is distinct from j.status
                union all
                select j.shard, j.known_status, -1 from judged j
                    where j.outcome = 'next' and j.known_status <> j.status
            ) moved group by moved.shard, moved.status order by moved.shard, moved.status
        on conflict (agent, shard, status) do update set count = tally.count + excluded.count
    )
    select case j.outcome when 'next' then 'done' else j.outcome end from judged j order by j.place;
end $$;
