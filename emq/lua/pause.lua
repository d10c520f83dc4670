-- pause: let no job be claimed any more; what is claimed goes on.
--
-- KEYS[1] base  -  emq:{queue}:, the base of DERIVES; no key has this name
--
-- RETURNS
--   1  paused; it may have been so before
--
-- COST O(1).

local base = KEYS[1]
-- INCLUDE events

redis.call('HSET', base .. 'meta', 'paused', '1')
if not is_paused then
  announce('paused')
end
return 1
