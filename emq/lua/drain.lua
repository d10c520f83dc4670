-- drain: delete the jobs that wait in pending or in schedule.
--
-- KEYS[1] base   -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] place  str  pending or schedule
-- ARGV[2] limit  int  at most this many
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   <drained>  how many are gone, with all that was their own; the parents of flows are told. Where
--              that is the limit there may be more
--
-- COST O(limit * log n) in the place.

local base = KEYS[1]
-- INCLUDE erase
-- INCLUDE events

local place = base .. ARGV[1]
local ids = redis.call('ZRANGE', place, '0', ARGV[2] - 1)
for _, id in ipairs(ids) do
  erase(id, base .. 'job:' .. id, 'drained') -- goes first: it fails where a parent cannot be read
  redis.call('ZREM', place, id)
  redis.call('ZREM', base .. 'dead', id) -- a parent in the place, too, that its child killed
end
if ids[1] then
  announce('drained', nil, 'place', ARGV[1], 'jobs', tostring(#ids))
end
return #ids
