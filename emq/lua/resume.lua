-- resume: let jobs be claimed again.
--
-- KEYS[1] base  -  emq:{queue}:, the base of DERIVES; no key has this name
--
-- RETURNS
--   1  not paused; it may have been so before
--
-- COST O(1).

local base = KEYS[1]
-- INCLUDE events
-- INCLUDE waiters

redis.call('HDEL', base .. 'meta', 'paused')
if is_paused then
  is_paused = false
  rouse() -- who finds more work than it can take wakes the next
  announce('resumed')
end
return 1
