-- state: where a job is. The sets are asked first; the row alone says less.
--
-- KEYS[1] row  hash  emq:{queue}:job:<id>; it names the base of DERIVES too
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'active'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'g:' .. group .. ':pending'
--
-- RETURNS
--   pending            in pending, or in its lane
--   active             in active
--   scheduled          in schedule
--   dead               in dead
--   awaiting_children  in no set, and its row says so
--   unknown            in no set, and its row says otherwise
--   nil                no such job
--
-- COST O(1).

-- INCLUDE row

local places = {
  { 'pending', 'pending' },
  { 'active', 'active' },
  { 'schedule', 'scheduled' },
  { 'dead', 'dead' },
}
for _, place in ipairs(places) do
  if redis.call('ZSCORE', base .. place[1], id) then
    return place[2]
  end
end
local job = redis.call('HMGET', row, 'state', 'group')
local state, group = job[1], job[2]
if not state then
  return false
end
if state == 'awaiting_children' then
  return state
end
if group and redis.call('ZSCORE', base .. 'g:' .. group .. ':pending', id) then
  return 'pending'
end
return 'unknown'
