-- obliterate: delete all jobs of a paused queue, a bounded number at a time.
--
-- KEYS[1] base    -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] force   int  1: claimed jobs too
-- ARGV[2] budget  int  at most this many jobs
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'pending'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'g:' .. group .. ':pending'
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   0  no job is left in any place or lane; forget deletes the queue's other keys
--   1  the budget is used up: there may be more
--   EMQSTATE not paused           nothing written
--   EMQSTATE active jobs present  nothing written
--
-- COST O(budget * log n) in the places, O(lanes), and O(r) in the ring for a laned job.

local base = KEYS[1]
-- INCLUDE queue
-- INCLUDE erase
-- INCLUDE lanes
-- INCLUDE laned

local budget = tonumber(ARGV[2])
if not is_paused then
  return redis.error_reply('EMQSTATE not paused')
end
if ARGV[1] ~= '1' and redis.call('EXISTS', base .. 'active') == 1 then
  return redis.error_reply('EMQSTATE active jobs present')
end

-- Delete the jobs of a place; answers whether the budget lasts.
local function empty(place, each)
  local ids = redis.call('ZRANGE', place, '0', budget - 1)
  for _, id in ipairs(ids) do
    local row = base .. 'job:' .. id
    local lane = each and lane_of(read(row, 'group')[1])
    redis.call('ZREM', place, id)
    erase(id, row, nil)
    if lane then
      lane.free()
    end
  end
  budget = budget - #ids
  return budget > 0
end

-- Whoever leaves `active` is counted out of its lane, which then is in the ring, if it has jobs and
-- is not paused.
if not empty(base .. 'active', true) then
  return 1
end
for _, place in ipairs({ 'pending', 'schedule', 'dead' }) do
  if not empty(base .. place) then
    return 1
  end
end
for _, group in ipairs(laned()) do
  local lane = lane_of(group)
  local lasts = empty(lane.key)
  if redis.call('EXISTS', lane.key) == 0 then
    lane.leave_ring()
  end
  if not lasts then
    return 1
  end
end
return 0
