-- settle: how a job leaves the place where its holder left it.
--
-- That is `active`, or where it waits again since its lease was reaped. A job in `schedule` or in
-- `dead` was settled already, by the same token, which stays the row's until the next claim.
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'pending'

-- INCLUDE held
-- INCLUDE try
-- INCLUDE lanes
-- INCLUDE waiters
-- INCLUDE events

-- Take a job out of `active`, or out of where a reaped lease left it. Answers whether it was in
-- either; nothing is written otherwise.
local function withdraw(id, group)
  local lane = lane_of(group)
  if redis.call('ZREM', base .. 'active', id) == 1 then
    if lane then
      lane.free()
    end
    rouse_below_ceiling()
    return true
  end
  if lane and try('ZREM', lane.key, id) == 1 then
    if redis.call('EXISTS', lane.key) == 0 then
      lane.leave_ring()
    end
    return true
  end
  return redis.call('ZREM', base .. 'pending', id) == 1
end
