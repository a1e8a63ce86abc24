-- Removes a conversation whose last event is `its_seq`: journal and listing. Returns the number of its last event; 0 if
-- there is no such conversation, null if the shard has another holder.
create function {schema}.erase_1(
    agent_id int, shard_number int, its_epoch bigint, its_holder text, its_id uuid, its_seq int
) returns int language plpgsql as $$
declare
    known record;
begin
    -- Not shared, as appends are: none is under way meanwhile that would have the conversation come back in part.
    perform 1 from {schema}.shard s where s.agent = agent_id and s.number = shard_number
        and s.epoch = its_epoch and s.holder = its_holder for no key update;
    if not found then
        return null;
    end if;
    select c.seq, c.status into known from {schema}.conversation c where c.agent = agent_id and c.id = its_id;
    if not found then
        return 0;
    elsif known.seq = its_seq then
        delete from {schema}.event e where e.agent = agent_id and e.conversation = its_id;
        delete from {schema}.conversation c where c.agent = agent_id and c.id = its_id;
        update {schema}.tally t set count = t.count - 1
            where t.agent = agent_id and t.shard = shard_number and t.status = known.status;
    end if;
    return known.seq;
end $$;
