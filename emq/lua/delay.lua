-- delay: put a claimed job off until later; it is no failure.
--
-- KEYS[1] row     hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] token   int   the attempts value that claim returned
-- ARGV[2] due     str   '+<ms>' from now, or '<ms>' since 1970
-- ARGV[3] excuse  int?  1: this attempt does not count against max_attempts
--
-- DERIVES base .. 'schedule'
--
-- RETURNS
--   1  -> schedule
--   0  no such job; nothing written
--   EMQSTALE delay token mismatch  another claim holds it, or none ever did; nothing written
--   EMQSTALE delay state moved on  it was settled with this token already; nothing written
--
-- COST O(log n) in active and schedule; O(r) in the ring for a laned job.

-- INCLUDE row
-- INCLUDE clock
-- INCLUDE places
-- INCLUDE settle

local token, due, excuse = unpack(ARGV)
local job = redis.call('HMGET', row, 'attempts', 'group', 'excused')
local attempts, group = job[1], job[2]
if not attempts then
  return 0
end
if not is_held(attempts, token) then
  return stale('delay', 'token mismatch')
end
-- A claim whose lease was swept is excused already; so is one that was put off and promoted, by a
-- call whose answer was lost.
local excuses = excuse == '1' and redis.call('ZSCORE', base .. 'active', id)
check_places('schedule')
if not withdraw(id, group) then
  return stale('delay', 'state moved on')
end
if string.sub(due, 1, 1) == '+' then
  due = from_now(string.sub(due, 2))
end
redis.call('HSET', row, 'state', 'scheduled')
if excuses then
  redis.call('HSET', row, 'excused', count_of(job[3]) + 1)
end
redis.call('ZADD', base .. 'schedule', due, id)
rouse_before(due)
announce('delayed', id)
return 1
