-- admit: how a job enters its queue.
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'de:' .. dedup
-- DERIVES base .. 'job:' .. id

-- INCLUDE clock
-- INCLUDE try
-- INCLUDE events
-- INCLUDE waiters

local function refuse_kind()
  return redis.error_reply('EMQKIND job id must be JOB-namespaced')
end

local function is_job(id)
  return string.sub(id, 1, 3) == 'JOB'
end

-- Read `count` names and values in turn from ARGV: due ('+<ms>' from now, or '<ms>' since 1970),
-- dedup and dedup_ttl, and what goes into the row as it is.
local function wishes_at(first, count)
  local wishes = {}
  for i = first, first + count - 1, 2 do
    wishes[ARGV[i]] = ARGV[i + 1]
  end
  return wishes
end

-- Answers 1, 0 where the id is taken, or the id of the job that holds the deduplication key; then
-- nothing is written.
local function admit(id, row, payload, wishes)
  if redis.call('EXISTS', row) == 1 then
    return 0
  end
  local dedup = wishes.dedup
  if dedup then
    local holder = try('GET', base .. 'de:' .. dedup)
    -- A key whose job is gone holds nothing: nodes of other makes leave such behind.
    if holder and holder ~= id and redis.call('EXISTS', base .. 'job:' .. holder) == 1 then
      return holder
    end
  end

  local due = wishes.due
  if due and string.sub(due, 1, 1) == '+' then
    due = from_now(string.sub(due, 2))
  end
  -- The place goes first: an error there, of a key that is no set, leaves nothing behind.
  if due then
    redis.call('ZADD', base .. 'schedule', due, id)
  else
    redis.call('ZADD', base .. 'pending', '0', id)
  end
  local state = due and 'scheduled' or 'pending'
  redis.call('HSET', row, 'state', state, 'attempts', '0', 'payload', payload)
  for _, field in ipairs({ 'dedup', 'result_ttl', 'options' }) do
    if wishes[field] then
      redis.call('HSET', row, field, wishes[field])
    end
  end
  if dedup then
    redis.call('SET', base .. 'de:' .. dedup, id)
    if wishes.dedup_ttl then
      redis.call('PEXPIRE', base .. 'de:' .. dedup, wishes.dedup_ttl)
    end
  end
  if due then
    rouse_before(due)
  else
    rouse()
  end
  announce(due and 'scheduled' or 'added', id)
  return 1
end
