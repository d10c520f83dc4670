-- complete: settle the job of `row` as done.
--
-- DERIVES base .. 'job:' .. id .. ':logs'
-- DERIVES base .. 'job:' .. id .. ':lock'
-- DERIVES base .. 'metrics:completed'

-- INCLUDE settle
-- INCLUDE ended
-- INCLUDE flows

-- Answers 1, 0 where there is no such job, or a refusal; nothing is written by the last two.
-- `keep_ms` keeps the outcome; nil or '' leaves that to what the row says.
local function complete(token, keep_ms, result)
  local job = redis.call(
    'HMGET', row, 'attempts', 'group', 'parent', 'parent_queue', 'dedup', 'result_ttl'
  )
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
  redis.call('DEL', row, row .. ':logs', row .. ':lock', row .. ':result')
  tally('completed')
  release(id, job[5])
  if keep_ms == '' then
    keep_ms = nil
  end
  keep(row, keep_ms or job[6], 'completed', 'result', result)
  announce('completed', id)
  return 1
end
