-- forget: delete keys of a paused queue that has no jobs in any place.
--
-- KEYS[1]   base      -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1..] suffixes  list  what comes after the base in their names
--
-- DERIVES base .. suffix
-- DERIVES base .. 'active'
-- DERIVES base .. 'pending'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'g:' .. group .. ':pending'
--
-- RETURNS
--   0  they are gone
--   1  a job came meanwhile; nothing written
--   EMQSTATE not paused  nothing written
--
-- COST O(suffixes) and O(lanes), and what freeing their values takes beside.

local base = KEYS[1]
-- INCLUDE events
-- INCLUDE lanes
-- INCLUDE laned

if not is_paused then
  return redis.error_reply('EMQSTATE not paused')
end
if redis.call(
  'EXISTS', base .. 'active', base .. 'pending', base .. 'schedule', base .. 'dead'
) > 0 then
  return 1
end
for _, group in ipairs(laned()) do
  if redis.call('EXISTS', lane_of(group).key) == 1 then
    return 1
  end
end
for _, suffix in ipairs(ARGV) do
  redis.call('UNLINK', base .. suffix)
  if suffix == 'meta' then
    announce('obliterated')
  end
end
return 0
