-- The version of the newest turn, which is the last field of an entry. Entries that were written before get that of the
-- beginning, on which a conversation stayed then. By patterns, because PostgreSQL reads no JSON with a \u0000 in it.
--
-- Generated, so that the release before goes on writing entries: the version of one that it moves is not known until
-- this release moves it.
-- At once, and not when rows are locked already: an append that waits for one of those would wait for ever. Appends of
-- the release before wait meanwhile, for about a minute a million conversations.
lock table {schema}.conversation in access exclusive mode;
update {schema}.conversation c
    set entry = left(c.entry, -1) || ',"version":"' || substring(e.line from '"digest":"([0-9a-f]*)"') || '"}'
    from {schema}.event e
    where e.agent = c.agent and e.conversation = c.id and e.seq = 1
        and c.entry !~ '"version":"[0-9a-f]*"[}]$' and e.line ~ '"digest":"[0-9a-f]*"';
alter table {schema}.conversation add column version text
    generated always as (coalesce(substring(entry from '"version":"([0-9a-f]*)"[}]$'), '')) stored;
create index on {schema}.conversation (agent, version, status, created_at, id);
