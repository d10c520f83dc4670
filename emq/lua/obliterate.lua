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
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   0  no job is left in any place; forget deletes the queue's other keys
--   1  the budget is used up: there may be more
--   EMQSTATE not paused           nothing written
--   EMQSTATE active jobs present  nothing written
--
-- COST O(budget * log n) in the places.

local base = KEYS[1]
-- INCLUDE queue
-- INCLUDE erase

local budget = tonumber(ARGV[2])
if not is_paused then
  return redis.error_reply('EMQSTATE not paused')
end
if ARGV[1] ~= '1' and redis.call('EXISTS', base .. 'active') == 1 then
  return redis.error_reply('EMQSTATE active jobs present')
end
for _, place in ipairs({ 'active', 'pending', 'schedule', 'dead' }) do
  local ids = redis.call('ZRANGE', base .. place, '0', budget - 1)
  for _, id in ipairs(ids) do
    redis.call('ZREM', base .. place, id)
    erase(id, base .. 'job:' .. id, nil)
  end
  budget = budget - #ids
  if budget <= 0 then
    return 1
  end
end
return 0
