-- lock: keep a claimed job from being removed for a while.
--
-- KEYS[1] row     hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] token   int   the attempts value that claim returned
-- ARGV[2] ttl_ms  int   how long, in ms from now
--
-- RETURNS
--   1  locked; where the server knows no fields that end by themselves, the row's stays until
--      unlock
--   0  no such job; nothing written
--   EMQSTALE lock token mismatch  another claim holds it, or none ever did; nothing written
--   EMQSTALE lock state moved on  it was settled with this token already; nothing written
--
-- COST O(1).

-- INCLUDE row
-- INCLUDE held
-- INCLUDE settled
-- INCLUDE locks

local token, ttl_ms = unpack(ARGV)
local job = redis.call('HMGET', row, 'attempts', 'state')
local attempts, state = job[1], job[2]
if not attempts then
  return 0
end
if not is_held(attempts, token) then
  return stale('lock', 'token mismatch')
end
if is_settled(state) then
  return stale('lock', 'state moved on')
end
lock(row, token, ttl_ms)
return 1
