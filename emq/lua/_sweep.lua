-- sweep: count the leases that ran out.
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'job:' .. id

-- INCLUDE clock
-- INCLUDE places
-- INCLUDE read
-- INCLUDE line_up
-- INCLUDE flows
-- INCLUDE bury
-- INCLUDE events

-- Let a job that stalled again wait for a time of its own, within a second, and within twice as
-- long each further time. One of those that a worker held has killed it, and who knows which:
-- apart, they do not meet again, and it dies alone.
local function scatter(id, row, stalled)
  local share = tonumber(string.sub(redis.sha1hex(id .. stalled), 1, 8), 16) / 2 ^ 32
  local due = from_now(math.floor(share * 1000 * 2 ^ math.min(stalled - 2, 6)))
  redis.call('HSET', row, 'state', 'scheduled')
  redis.call('ZADD', base .. 'schedule', due, id)
end

-- A job that stalled `most` times is dead, others wait again: with `scatters`, those that stalled
-- before go to the schedule. Answers the ids of both, and how many entries were looked at.
local function sweep(most, limit, scatters)
  local lapsed = redis.call(
    'ZRANGEBYSCORE', base .. 'active', '-inf', from_now(0), 'LIMIT', '0', limit
  )
  check_places('pending', 'schedule', 'dead')
  local recovered, dead = {}, {}
  for _, id in ipairs(lapsed) do
    local row = base .. 'job:' .. id
    local job = read(
      row, 'payload', 'group', 'stalled', 'parent', 'parent_queue', 'parent_policy', 'dedup',
      'result_ttl'
    )
    local payload, lane = job[1], lane_of(job[2])
    local stalled = count_of(job[3]) + 1
    local dies = payload and stalled >= most
    local parent
    if dies then
      -- A parent that cannot be told must not keep all others from being swept: its child lives.
      dies, parent = pcall(parent_of, job[4], job[5])
    end
    redis.call('ZREM', base .. 'active', id)
    rouse_below_ceiling()
    if lane then
      lane.free()
    end
    local waits_apart = scatters and stalled > 1
    if payload then
      redis.call('HSET', row, 'stalled', stalled)
      announce('stalled', id, 'to', dies and 'dead' or waits_apart and 'scheduled' or 'pending')
    end
    if dies then
      bury(id, row, 'stalled', job[7], job[8])
      if parent then
        parent.died(id, job[6], 'stalled')
      end
      dead[#dead + 1] = id
    elseif payload then
      if waits_apart then
        scatter(id, row, stalled)
      else
        line_up(id, row, lane)
      end
      recovered[#recovered + 1] = id
    end
  end
  return recovered, dead, #lapsed
end
