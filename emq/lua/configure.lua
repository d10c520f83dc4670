-- configure: set one of the queue's own settings, or take it away.
--
-- KEYS[1] base   -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] field  str  concurrency: how many jobs may be claimed at once, for claims to keep to;
--                     events: 1, to publish every transition
-- ARGV[2] value  str  '' takes it away
--
-- RETURNS
--   1  it is so now
--
-- COST O(1).

local base = KEYS[1]
-- INCLUDE waiters

if ARGV[2] == '' then
  redis.call('HDEL', base .. 'meta', ARGV[1])
else
  redis.call('HSET', base .. 'meta', ARGV[1], ARGV[2])
end
rouse() -- a worker that waits at the ceiling looks again
return 1
