-- reprocess: let a dead job wait again, in its lane if it has one.
--
-- KEYS[1] row    hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] reset  int   1: its attempts so far, and its stalls, do not count any more
--
-- DERIVES base .. 'dead'
--
-- RETURNS
--   1  dead -> pending, or its lane
--   0  no such job; nothing written
--   EMQSTATE not dead  nothing written
--
-- COST O(log n) in dead and pending; O(r) in the ring for a laned job.

-- INCLUDE row
-- INCLUDE places
-- INCLUDE line_up
-- INCLUDE events

local job = redis.call('HMGET', row, 'attempts', 'group', 'payload')
if redis.call('EXISTS', row) == 0 then
  return 0
end
check_places('pending')
if not job[3] or redis.call('ZREM', base .. 'dead', id) == 0 then
  return redis.error_reply('EMQSTATE not dead')
end
redis.call('HDEL', row, 'last_error')
if ARGV[1] == '1' then
  redis.call('HDEL', row, 'stalled')
  redis.call('HSET', row, 'excused', count_of(job[1]))
end
line_up(id, row, lane_of(job[2]))
announce('reprocessed', id)
return 1
