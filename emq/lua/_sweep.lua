-- sweep: count the leases that ran out.
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'job:' .. id

-- INCLUDE clock
-- INCLUDE lanes
-- INCLUDE flows
-- INCLUDE bury
-- INCLUDE events

-- A job that stalled `most` times is dead, others wait again. Answers the ids of both, and how many
-- entries were looked at.
local function sweep(most, limit)
  local lapsed = redis.call(
    'ZRANGEBYSCORE', base .. 'active', '-inf', from_now(0), 'LIMIT', '0', limit
  )
  local recovered, dead = {}, {}
  for _, id in ipairs(lapsed) do
    local row = base .. 'job:' .. id
    local job = redis.call(
      'HMGET', row, 'payload', 'group', 'stalled', 'parent', 'parent_queue', 'parent_policy',
      'dedup', 'result_ttl'
    )
    local payload, lane = job[1], lane_of(job[2])
    local stalled = (tonumber(job[3]) or 0) + 1
    local dies = payload and stalled >= most
    local parent = dies and parent_of(job[4], job[5])
    redis.call('ZREM', base .. 'active', id)
    rouse_below_ceiling()
    if lane then
      lane.free()
    end
    if payload then
      redis.call('HSET', row, 'stalled', stalled)
      announce('stalled', id, 'to', dies and 'dead' or 'pending')
    end
    if dies then
      bury(id, row, 'stalled', job[7], job[8])
      if parent then
        parent.died(id, job[6], 'stalled')
      end
      dead[#dead + 1] = id
    elseif payload then
      line_up(id, row, lane)
      recovered[#recovered + 1] = id
    end
  end
  return recovered, dead, #lapsed
end
