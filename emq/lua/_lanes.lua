-- lanes: a lane's place in the ring, and its count of jobs in flight.
--
-- A lane is in `ring`, once, while it can be served: it has jobs, it is not paused, and fewer than
-- its limit are in flight. `gactive` counts a group's members of `active`, so whoever adds one to
-- `active`, or takes one out, counts. All that follows the jobs: a key of another's in its way
-- keeps no job from moving, and a recount sets the count right.
--
-- DERIVES base .. 'g:' .. group .. ':pending'
-- DERIVES base .. 'ring'
-- DERIVES base .. 'paused'
-- DERIVES base .. 'glimit'
-- DERIVES base .. 'gactive'
-- DERIVES base .. 'wake'

-- INCLUDE read
-- INCLUDE waiters

-- Answers nil for a job without a group. What a lane can do is made only where there is one, since
-- most jobs have none.
local function lane_of(group)
  if not group then
    return nil
  end
  local lane = { key = base .. 'g:' .. group .. ':pending' }

  function lane.in_flight()
    return count_of(try('HGET', base .. 'gactive', group))
  end

  local function count(by)
    local now = lane.in_flight() + by
    if now > 0 then
      try('HSET', base .. 'gactive', group, now)
    else
      try('HDEL', base .. 'gactive', group)
    end
  end

  function lane.is_full()
    local limit = tonumber(try('HGET', base .. 'glimit', group) or nil)
    return limit and lane.in_flight() >= limit
  end

  function lane.leave_ring()
    try('LREM', base .. 'ring', '0', group)
  end

  -- Put the lane back in rotation, if it can be served, and wake one who waits for it.
  function lane.join_ring()
    if redis.call('EXISTS', lane.key) == 0
      or try('SISMEMBER', base .. 'paused', group) ~= 0
      or lane.is_full()
      or try('LPOS', base .. 'ring', group)
    then
      return
    end
    try('RPUSH', base .. 'ring', group)
    try('LPUSH', base .. 'wake', '1')
    try('LTRIM', base .. 'wake', '0', '63')
  end

  -- Count a job that has entered `active`.
  function lane.take()
    count(1)
    if lane.is_full() then
      lane.leave_ring()
    end
  end

  -- Count a job that has left `active`; that may make the lane serviceable again.
  function lane.free()
    count(-1)
    lane.join_ring()
  end

  return lane
end
