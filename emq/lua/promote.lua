-- promote: let the scheduled jobs wait that have fallen due.
--
-- KEYS[1] base   -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] limit  int  at most this many entries are looked at
--
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   <moved>  how many jobs: schedule -> pending, or their lane; an entry without a payload is
--            dropped, its row left as it is, and not counted
--
-- COST O(limit * log n) in schedule and pending; O(r) in the ring for a laned job.

local base = KEYS[1]
-- INCLUDE clock
-- INCLUDE lanes

local due = redis.call(
  'ZRANGEBYSCORE', base .. 'schedule', '-inf', from_now(0), 'LIMIT', '0', ARGV[1]
)
local moved = 0
for _, id in ipairs(due) do
  local row = base .. 'job:' .. id
  local job = redis.call('HMGET', row, 'payload', 'group')
  redis.call('ZREM', base .. 'schedule', id)
  if job[1] then
    line_up(id, row, lane_of(job[2]))
    moved = moved + 1
  end
end
return moved
