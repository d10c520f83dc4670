-- lanes: a lane's place in the ring, and its count of jobs in flight.
--
-- A lane is in `ring`, once, while it can be served: it has jobs, it is not paused, and fewer than
-- its limit are in flight. `gactive` counts a group's members of `active`, so whoever adds one to
-- `active`, or takes one out, counts.
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'g:' .. group .. ':pending'
-- DERIVES base .. 'ring'
-- DERIVES base .. 'paused'
-- DERIVES base .. 'glimit'
-- DERIVES base .. 'gactive'
-- DERIVES base .. 'wake'

-- INCLUDE waiters

-- Answers nil for a job without a group. What a lane can do is made only where there is one, since
-- most jobs have none.
local function lane_of(group)
  if not group then
    return nil
  end
  local lane = { key = base .. 'g:' .. group .. ':pending' }

  function lane.is_full()
    local limit = tonumber(redis.call('HGET', base .. 'glimit', group))
    return limit and (tonumber(redis.call('HGET', base .. 'gactive', group)) or 0) >= limit
  end

  function lane.leave_ring()
    redis.call('LREM', base .. 'ring', '0', group)
  end

  -- Put the lane back in rotation, if it can be served, and wake one who waits for it.
  function lane.join_ring()
    if redis.call('EXISTS', lane.key) == 0
      or redis.call('SISMEMBER', base .. 'paused', group) == 1
      or lane.is_full()
      or redis.call('LPOS', base .. 'ring', group)
    then
      return
    end
    redis.call('RPUSH', base .. 'ring', group)
    redis.call('LPUSH', base .. 'wake', '1')
    redis.call('LTRIM', base .. 'wake', '0', '63')
  end

  -- Count a job that has entered `active`.
  function lane.take()
    redis.call('HINCRBY', base .. 'gactive', group, '1')
    if lane.is_full() then
      lane.leave_ring()
    end
  end

  -- Count a job that has left `active`; that may make the lane serviceable again.
  function lane.free()
    if redis.call('HINCRBY', base .. 'gactive', group, '-1') <= 0 then
      redis.call('HDEL', base .. 'gactive', group)
    end
    lane.join_ring()
  end

  return lane
end

-- Let a job wait to be claimed: in its lane if it has one, else with the flat jobs.
local function line_up(id, row, lane)
  redis.call('HSET', row, 'state', 'pending')
  if lane then
    redis.call('ZADD', lane.key, '0', id)
    lane.join_ring()
  else
    redis.call('ZADD', base .. 'pending', '0', id)
    rouse()
  end
end
