-- leave: a worker waits no more.
--
-- KEYS[1] base    -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] waiter  str   the worker's name
-- ARGV[2] blocks  int?  1: it may be blocked on rouse and on rouse:<waiter>, and is to wake up
--
-- DERIVES base .. 'rouse:' .. waiter
--
-- RETURNS
--   1  its name is not in parked; where jobs are pending, or fall due before the others are back,
--      another worker is woken, since it may have been this one that was to see to them
--
-- COST O(log n) in parked.

local base = KEYS[1]
-- INCLUDE parking

local own = base .. 'rouse:' .. ARGV[1]
unpark(ARGV[1])
if ARGV[2] then
  redis.call('LPUSH', own, '1')
  redis.call('PEXPIRE', own, kept_ms)
else
  redis.call('DEL', own)
end
if redis.call('EXISTS', base .. 'pending') == 1 then
  rouse()
end
rouse_for_next()
return 1
