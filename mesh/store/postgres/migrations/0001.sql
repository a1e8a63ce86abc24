-- The first schema of the store. {schema} is the schema of the namespace.
--
-- Everything that belongs to a shard is written by statements that name its epoch and its holder, and that hold
-- a shared lock on its row: whoever opens the shard waits for them, and they find a newer holder afterwards.

create table {schema}.agent (
    id serial primary key,
    name text not null unique,
    shards int not null,
    secret bytea not null,
    created_at timestamptz not null default now()
);

-- `holder` is a random name that is made for each opening: a database that lost its newest commits may hand out
-- an epoch twice, but never an epoch together with a holder.
create table {schema}.shard (
    agent int not null references {schema}.agent,
    number int not null,
    epoch bigint not null,
    holder text not null,
    primary key (agent, number)
);

-- A line is an event as the journal writes it everywhere.
create table {schema}.event (
    agent int not null,
    conversation uuid not null,
    seq int not null,
    line text not null,
    primary key (agent, conversation, seq)
);

-- The listing. `seq` is the last event of the journal; `append` is the name of the last append, by which one
-- that is sent again is known; `entry` is what clients see in a list, the other columns are parts of it. The
-- names in `asking` begin with a dot each.
create table {schema}.conversation (
    agent int not null,
    id uuid not null,
    shard int not null,
    seq int not null,
    append text not null,
    entry text not null,
    suffix text collate "C" not null,
    created_at text collate "C" not null,
    updated_at text collate "C" not null,
    status text not null,
    turn_state text not null,
    context text not null,
    needs_pass boolean not null,
    expires_at text not null,
    asking text[] not null,
    primary key (agent, id)
);
create index on {schema}.conversation (agent, created_at, id);
create index on {schema}.conversation (agent, status, created_at, id);
create index on {schema}.conversation (agent, updated_at, id);
create index on {schema}.conversation (agent, context, updated_at, id);
create index on {schema}.conversation (agent, suffix);
create index on {schema}.conversation (agent, shard, id) where needs_pass;
create index on {schema}.conversation (agent, shard, id) where expires_at <> '';
create index on {schema}.conversation (agent, shard, id) where asking <> '{}';
create index on {schema}.conversation (agent, shard, created_at, id)
    where turn_state in ('working', 'paused', 'waiting_approval', 'auth_required');

-- How many conversations of a shard have a status.
create table {schema}.tally (
    agent int not null,
    shard int not null,
    status text not null,
    count bigint not null,
    primary key (agent, shard, status)
);

-- All webhooks of a conversation. `version` orders the writes of one holder: a statement that was held up on its
-- way must not undo a later one. Rows without webhooks are removed when the shard is opened again.
create table {schema}.webhooks (
    agent int not null,
    conversation uuid not null,
    shard int not null,
    epoch bigint not null,
    version bigint not null,
    content text not null,
    primary key (agent, conversation)
);
create index on {schema}.webhooks (agent, shard);

-- The book of grants, an entry a row, numbered without gaps.
create table {schema}.grant_entry (
    agent int not null references {schema}.agent,
    number int not null,
    entry text not null,
    primary key (agent, number)
);

create table {schema}.version (
    agent int not null references {schema}.agent,
    digest text not null,
    source text not null,
    files text not null,
    primary key (agent, digest)
);

-- Appends, each to one conversation: in one statement and one commit, those of any shards. The arrays have an
-- element for each append, but for `lines`, which has those of all appends one after the other, `sizes` of them
-- for each. Returns for each append, in their order, what became of it: 'done', 'stale', or the number of the
-- event at which the journal is.
--
-- A release that changes this function adds one with the next number, so that the release before works on the
-- newer schema.
create function {schema}.append_1(
    agent_id int, shards int[], epochs bigint[], holders text[], ids uuid[], afters int[], appends text[],
    sizes int[], lines text[], entries text[], suffixes text[], created text[], updated text[],
    statuses text[], states text[], contexts text[], needs boolean[], expiries text[], askings text[]
) returns setof text language plpgsql as $$
declare
    first int := 0;
    known record;
    size int;
begin
    -- In the order of the numbers, so that two statements cannot wait for each other.
    perform 1 from {schema}.shard s where s.agent = agent_id and s.number = any(shards)
        order by s.number for share;
    for place in 1..cardinality(ids) loop
        size := sizes[place];
        -- A new statement, and so a new snapshot: it sees who has opened the shard before the lock was granted.
        perform 1 from {schema}.shard s where s.agent = agent_id and s.number = shards[place]
            and s.epoch = epochs[place] and s.holder = holders[place];
        if not found then
            return next 'stale';
        else
            select c.seq, c.append, c.status into known from {schema}.conversation c
                where c.agent = agent_id and c.id = ids[place];
            if found and known.append = appends[place] then
                return next 'done';
            elsif coalesce(known.seq, 0) <> afters[place] then
                return next coalesce(known.seq, 0)::text;
            else
                insert into {schema}.event
                    select agent_id, ids[place], afters[place] + n, lines[first + n]
                    from generate_series(1, size) n;
                insert into {schema}.conversation values (
                    agent_id, ids[place], shards[place], size, appends[place], entries[place],
                    suffixes[place], created[place], updated[place], statuses[place], states[place],
                    contexts[place], needs[place], expiries[place],
                    string_to_array(askings[place], chr(10))
                ) on conflict (agent, id) do update set
                    seq = afters[place] + size, append = excluded.append, entry = excluded.entry,
                    updated_at = excluded.updated_at, status = excluded.status,
                    turn_state = excluded.turn_state, context = excluded.context,
                    needs_pass = excluded.needs_pass, expires_at = excluded.expires_at,
                    asking = excluded.asking;
                if known.status is distinct from statuses[place] then
                    update {schema}.tally t set count = t.count - 1
                        where t.agent = agent_id and t.shard = shards[place] and t.status = known.status;
                    insert into {schema}.tally values (agent_id, shards[place], statuses[place], 1)
                        on conflict (agent, shard, status) do update set count = tally.count + 1;
                end if;
                return next 'done';
            end if;
        end if;
        first := first + size;
    end loop;
end $$;
