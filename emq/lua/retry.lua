-- retry: settle a claimed job as failed: it falls due again later, or is dead.
--
-- KEYS[1] row           hash   emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] token         int    the attempts value that claim returned
-- ARGV[2] delay_ms      int    until it falls due again, in ms of server time
-- ARGV[3] max_attempts  int    a job that failed this often is dead; claims whose workers died, or
--                              that were excused, are no failures
-- ARGV[4] reason        bytes  kept as the row's last_error
--
-- DERIVES base .. 'schedule'
--
-- RETURNS
--   scheduled  -> schedule
--   dead       -> dead; a flow's parent is told, and who waits for the outcome
--   EMQSTALE job gone              no such job; nothing written
--   EMQSTALE retry token mismatch  another claim holds it, or none ever did; nothing written
--   EMQSTALE retry state moved on  it was settled with this token already; nothing written
--
-- COST O(log n) in active and schedule; O(r) in the ring for a laned job.

-- INCLUDE row
-- INCLUDE clock
-- INCLUDE places
-- INCLUDE settle
-- INCLUDE flows
-- INCLUDE bury

local token, delay_ms, max_attempts, reason = unpack(ARGV)
local job = redis.call(
  'HMGET', row, 'attempts', 'group', 'parent', 'parent_queue', 'parent_policy',
  'stalled', 'excused', 'dedup', 'result_ttl'
)
local attempts, group = job[1], job[2]
if not attempts then
  return stale('job', 'gone')
end
if not is_held(attempts, token) then
  return stale('retry', 'token mismatch')
end

local failures = count_of(attempts) - count_of(job[6]) - count_of(job[7])
local again = failures < tonumber(max_attempts)
local parent = not again and parent_of(job[3], job[4])
check_places(again and 'schedule' or 'dead')
if not withdraw(id, group) then
  return stale('retry', 'state moved on')
end
if again then
  local due = from_now(delay_ms)
  redis.call('HSET', row, 'state', 'scheduled', 'last_error', reason)
  redis.call('ZADD', base .. 'schedule', due, id)
  rouse_before(due)
  announce('failed', id, 'error', reason, 'to', 'scheduled')
  return 'scheduled'
end
bury(id, row, reason, job[8], job[9])
if parent then
  parent.died(id, job[5], reason)
end
announce('failed', id, 'error', reason, 'to', 'dead')
return 'dead'
