-- complete: settle the job of `row` as done.
--
-- DERIVES base .. 'job:' .. id .. ':logs'
-- DERIVES base .. 'metrics:completed'

-- INCLUDE settle
-- INCLUDE flows

-- Answers 1, 0 where there is no such job, or a refusal; nothing is written by the last two.
local function complete(token, result)
  local job = redis.call('HMGET', row, 'attempts', 'group', 'parent', 'parent_queue')
  local attempts, group = job[1], job[2]
  if not attempts then
    return 0
  end
  if not is_held(attempts, token) then
    return stale('complete', 'token mismatch')
  end
  local parent = parent_of(job[3], job[4])
  if not withdraw(id, group) then
    return stale('complete', 'state moved on')
  end
  if parent then
    parent.done(id, result or id)
  end
  redis.call('DEL', row, row .. ':logs')
  redis.call('HINCRBY', base .. 'metrics:completed', 'count', '1')
  return 1
end
