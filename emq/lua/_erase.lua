-- erase: take a job away, with all that is its own.
--
-- DERIVES base .. 'job:' .. id .. ':logs'
-- DERIVES base .. 'job:' .. id .. ':lock'
-- DERIVES base .. 'job:' .. id .. ':dependencies'
-- DERIVES base .. 'job:' .. id .. ':processed'
-- DERIVES base .. 'job:' .. id .. ':failed'
-- DERIVES base .. 'job:' .. id .. ':unsuccessful'

-- INCLUDE ended
-- INCLUDE read
-- INCLUDE flows

-- Delete a job's row and what hangs on it; its places are the caller's matter. A flow's parent that
-- still waits for it learns that it `died`, and for what reason. Who waits for its outcome is told.
local function erase(id, row, reason)
  local job = read(
    row, 'parent', 'parent_queue', 'parent_policy', 'dedup', 'result_ttl', 'state'
  )
  local parent = reason and job[6] ~= 'dead' and parent_of(job[1], job[2])
  redis.call(
    'DEL', row, row .. ':logs', row .. ':lock', row .. ':dependencies', row .. ':processed',
    row .. ':failed', row .. ':unsuccessful', row .. ':result'
  )
  release(id, job[4])
  if job[5] then
    redis.call('PUBLISH', row .. ':result', 'removed')
  end
  if parent then
    parent.died(id, job[3], reason)
  end
end
