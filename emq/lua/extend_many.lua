-- extend_many: let leases end later, each if its holder still holds it, all at the same instant.
--
-- KEYS[1]   base      -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1]   lease_ms  int   length of the leases from now, in ms of server time
-- ARGV[2]   lock_ms   int   how long the locks last of those that are locked, in ms from now; 0
--                           leaves them
-- ARGV[3..] held      list  id, token for each
--
-- DERIVES base .. 'job:' .. id
-- DERIVES base .. 'active'
--
-- RETURNS
--   [id, ...]  those that could not be extended, in order; nothing was written for them
--
-- COST O(held * log n) in active. The caller bounds the held of one call.

local base = KEYS[1]
-- INCLUDE clock
-- INCLUDE held
-- INCLUDE try
-- INCLUDE locks

local ends, lock_ms = from_now(ARGV[1]), ARGV[2]
local lost = {}
for i = 3, #ARGV, 2 do
  local id, row = ARGV[i], base .. 'job:' .. ARGV[i]
  local attempts = try('HGET', row, 'attempts')
  if is_held(attempts, ARGV[i + 1]) and redis.call('ZSCORE', base .. 'active', id) then
    redis.call('ZADD', base .. 'active', 'XX', ends, id)
    if lock_ms ~= '0' and is_locked_by(row, attempts) then
      lock(row, attempts, lock_ms)
    end
  else
    lost[#lost + 1] = id
  end
end
return lost
