-- give_back: let claimed jobs wait again, each if its holder still holds it, as if not claimed.
--
-- KEYS[1]   base  -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1..] held  list  id, token for each
--
-- DERIVES base .. 'job:' .. id
-- DERIVES base .. 'active'
--
-- RETURNS
--   [id, ...]  those that their holder did not hold any more, in order; nothing was written for
--              them. The others: active -> pending, or their lane; the claim is no attempt
--
-- COST O(held * log n) in active and pending. The caller bounds the held of one call.

local base = KEYS[1]
-- INCLUDE held
-- INCLUDE places
-- INCLUDE read
-- INCLUDE line_up
-- INCLUDE events

check_places('pending')
local lost = {}
for i = 1, #ARGV, 2 do
  local id, row = ARGV[i], base .. 'job:' .. ARGV[i]
  local job = read(row, 'attempts', 'group', 'excused')
  if is_held(job[1], ARGV[i + 1]) and redis.call('ZREM', base .. 'active', id) == 1 then
    local lane = lane_of(job[2])
    rouse_below_ceiling()
    if lane then
      lane.free()
    end
    redis.call('HSET', row, 'excused', count_of(job[3]) + 1)
    line_up(id, row, lane)
    announce('returned', id)
  else
    lost[#lost + 1] = id
  end
end
return lost
