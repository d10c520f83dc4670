-- bury: how a job dies.
--
-- DERIVES base .. 'dead'
-- DERIVES base .. 'metrics:failed'

-- INCLUDE ended

-- Put a job that is in no place any more into the morgue. `parent` is told, if there is one.
local function bury(id, row, reason, dedup, keep_ms)
  redis.call('HSET', row, 'state', 'dead', 'last_error', reason)
  redis.call('ZADD', base .. 'dead', '0', id)
  tally('failed')
  release(id, dedup)
  keep(row, keep_ms, 'dead', 'error', reason)
end
