-- reap: let the jobs wait again whose leases have run out.
--
-- KEYS[1] base   -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] limit  int  at most this many entries are looked at
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   <moved>  how many jobs: active -> pending, or their lane; an entry without a payload is
--            dropped, its row left as it is, and not counted
--
-- COST O(limit * log n) in active and pending; O(r) in the ring for a laned job.

local base = KEYS[1]
-- INCLUDE clock
-- INCLUDE places
-- INCLUDE read
-- INCLUDE line_up
-- INCLUDE events

local lapsed = redis.call(
  'ZRANGEBYSCORE', base .. 'active', '-inf', from_now(0), 'LIMIT', '0', ARGV[1]
)
check_places('pending')
local moved = 0
for _, id in ipairs(lapsed) do
  local row = base .. 'job:' .. id
  local job = read(row, 'payload', 'group')
  local payload, lane = job[1], lane_of(job[2])
  redis.call('ZREM', base .. 'active', id)
  rouse_below_ceiling()
  if lane then
    lane.free()
  end
  if payload then
    line_up(id, row, lane)
    announce('reaped', id)
    moved = moved + 1
  end
end
return moved
