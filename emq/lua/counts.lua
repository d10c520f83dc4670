-- counts: how many jobs are where, at one instant.
--
-- KEYS[1] base  -  emq:{queue}:, the base of DERIVES; no key has this name
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'active'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'metrics:completed'
-- DERIVES base .. 'metrics:failed'
--
-- RETURNS
--   [pending, active, schedule, dead, completed, failed]  nothing written
--
-- COST O(1).

local base = KEYS[1]
-- INCLUDE read

local function counted(which)
  return count_of(redis.call('HGET', base .. which, 'count'))
end

return {
  redis.call('ZCARD', base .. 'pending'),
  redis.call('ZCARD', base .. 'active'),
  redis.call('ZCARD', base .. 'schedule'),
  redis.call('ZCARD', base .. 'dead'),
  counted('metrics:completed'),
  counted('metrics:failed'),
}
