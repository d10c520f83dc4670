-- line_up: how a job comes to wait.
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'g:' .. group .. ':pending'

-- INCLUDE lanes

-- Let a job wait to be claimed: in its lane if it has one that is a set, else with the flat jobs.
local function line_up(id, row, lane)
  local laned = lane and try('ZADD', lane.key, '0', id)
  if not laned then
    redis.call('ZADD', base .. 'pending', '0', id)
  end
  redis.call('HSET', row, 'state', 'pending')
  if laned then
    lane.join_ring()
  else
    rouse()
  end
end
