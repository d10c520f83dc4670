-- admit: how a job enters its queue.
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'schedule'

-- INCLUDE clock

local function refuse_kind()
  return redis.error_reply('EMQKIND job id must be JOB-namespaced')
end

local function is_job(id)
  return string.sub(id, 1, 3) == 'JOB'
end

-- `due` is nil or '' for a job that waits for nothing, '+<ms>' from now, or '<ms>' since 1970.
-- Answers 1, or 0 where the id is taken; then nothing is written.
local function admit(id, row, payload, due)
  if redis.call('EXISTS', row) == 1 then
    return 0
  end
  if not due or due == '' then
    redis.call('ZADD', base .. 'pending', '0', id)
    redis.call('HSET', row, 'state', 'pending', 'attempts', '0', 'payload', payload)
    return 1
  end
  if string.sub(due, 1, 1) == '+' then
    due = from_now(string.sub(due, 2))
  end
  redis.call('ZADD', base .. 'schedule', due, id)
  redis.call('HSET', row, 'state', 'scheduled', 'attempts', '0', 'payload', payload)
  return 1
end
