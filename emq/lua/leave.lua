-- leave: a worker waits no more.
--
-- KEYS[1] base    -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] waiter  str  the worker's name
--
-- RETURNS
--   1  its name is not in parked; where jobs are pending, or fall due before the others are back,
--      another worker is woken, since it may have been this one that was to see to them
--
-- COST O(log n) in parked.

local base = KEYS[1]
-- INCLUDE waiters

unpark(ARGV[1])
if redis.call('EXISTS', base .. 'pending') == 1 then
  rouse()
end
rouse_for_next()
return 1
