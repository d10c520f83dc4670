-- remove: take a job away, wherever it is, unless somebody has locked it.
--
-- KEYS[1] row    hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] dedup  str?  a deduplication key to set free, if the job holds it
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'active'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'dead'
--
-- RETURNS
--   1  gone, with all that was its own; a flow's parent is told
--   0  no such job; nothing written
--   EMQLOCK job is locked  nothing written
--
-- COST O(log n) in its place; O(r) in the ring for a laned job.

-- INCLUDE row
-- INCLUDE places
-- INCLUDE try
-- INCLUDE lanes
-- INCLUDE locks
-- INCLUDE erase
-- INCLUDE events

if redis.call('EXISTS', row) == 0 then
  return 0
end
if is_locked(row) then
  return redis.error_reply('EMQLOCK job is locked')
end
local lane = lane_of(redis.call('HGET', row, 'group') or nil)
check_places('pending', 'active', 'schedule', 'dead')
erase(id, row, 'removed') -- goes first: a parent that cannot be read leaves all as it was
release(id, ARGV[1])
redis.call('ZREM', base .. 'pending', id)
redis.call('ZREM', base .. 'schedule', id)
redis.call('ZREM', base .. 'dead', id)
if redis.call('ZREM', base .. 'active', id) == 1 then
  if lane then
    lane.free()
  end
  rouse_below_ceiling()
end
if lane and try('ZREM', lane.key, id) == 1 and redis.call('EXISTS', lane.key) == 0 then
  lane.leave_ring()
end
announce('removed', id)
return 1
