-- sweep_stalled: count the leases that ran out; a job that stalled too often is dead, others wait.
--
-- KEYS[1] base         -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] max_stalled  int  a job that stalled this often is dead
-- ARGV[2] limit        int  at most this many entries are looked at
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'job:' .. id
-- DERIVES base .. 'metrics:failed'
--
-- RETURNS
--   [recovered, dead]  the ids: active -> pending, or their lane; active -> dead, and a flow's
--                      parent is told; an entry without a payload is dropped, its row left as it
--                      is, and is in neither
--
-- COST O(limit * log n) in active and pending; O(r) in the ring for a laned job.

local base = KEYS[1]
-- INCLUDE clock
-- INCLUDE lanes
-- INCLUDE flows

local max_stalled = tonumber(ARGV[1])
local lapsed = redis.call(
  'ZRANGEBYSCORE', base .. 'active', '-inf', from_now(0), 'LIMIT', '0', ARGV[2]
)
local recovered, dead = {}, {}
for _, id in ipairs(lapsed) do
  local row = base .. 'job:' .. id
  local job = redis.call(
    'HMGET', row, 'payload', 'group', 'stalled', 'parent', 'parent_queue', 'parent_policy'
  )
  local payload, lane = job[1], lane_of(job[2])
  local stalled = (tonumber(job[3]) or 0) + 1
  local dies = payload and stalled >= max_stalled
  local parent = dies and parent_of(job[4], job[5])
  redis.call('ZREM', base .. 'active', id)
  if lane then
    lane.free()
  end
  if dies then
    redis.call('HSET', row, 'state', 'dead', 'stalled', stalled, 'last_error', 'stalled')
    redis.call('ZADD', base .. 'dead', '0', id)
    redis.call('HINCRBY', base .. 'metrics:failed', 'count', '1')
    if parent then
      parent.died(id, job[6], 'stalled')
    end
    dead[#dead + 1] = id
  elseif payload then
    redis.call('HSET', row, 'stalled', stalled)
    line_up(id, row, lane)
    recovered[#recovered + 1] = id
  end
end
return { recovered, dead }
