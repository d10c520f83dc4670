-- recount: compare what each group's count of jobs in flight says with what is in active.
--
-- KEYS[1] base   -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] mend   int  1: set the counts right; 0: only say
-- ARGV[2] limit  int  more jobs in active than this are not counted
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   [group, said, held, ...]  three texts a group whose count is wrong; none where all are right
--   nil  more than limit are active; nothing was compared
--
-- COST O(a) in active, and O(r) in the ring for a group whose count is set right.

local base = KEYS[1]
-- INCLUDE lanes

local mend, limit = unpack(ARGV)
if redis.call('ZCARD', base .. 'active') > tonumber(limit) then
  return false
end
local held, groups = {}, {}
local function count(group, by)
  if not held[group] then
    held[group] = 0
    groups[#groups + 1] = group
  end
  held[group] = held[group] + by
end
for _, id in ipairs(redis.call('ZRANGE', base .. 'active', '0', '-1')) do
  local group = read(base .. 'job:' .. id, 'group')[1]
  if group then
    count(group, 1)
  end
end
for _, group in ipairs(redis.call('HKEYS', base .. 'gactive')) do
  count(group, 0)
end

local wrong = {}
for _, group in ipairs(groups) do
  local said = redis.call('HGET', base .. 'gactive', group) or '0'
  local right = string.format('%.0f', held[group])
  -- A count of nothing is not kept.
  if said ~= right or (right == '0' and redis.call('HEXISTS', base .. 'gactive', group) == 1) then
    for _, text in ipairs({ group, said, right }) do
      wrong[#wrong + 1] = text
    end
    if mend == '1' then
      if right == '0' then
        redis.call('HDEL', base .. 'gactive', group)
      else
        redis.call('HSET', base .. 'gactive', group, right)
      end
      local lane = lane_of(group)
      if lane.is_full() then
        lane.leave_ring()
      else
        lane.join_ring()
      end
    end
  end
end
return wrong
