-- extend: let a lease end later, if the caller still holds it.
--
-- KEYS[1] row       hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] token     int   the attempts value that claim returned
-- ARGV[2] lease_ms  int   length of the lease from now, in ms of server time
--
-- DERIVES base .. 'active'
--
-- RETURNS
--   1  the lease ends later; it may have run out before, as long as nobody had reaped it
--   0  no such job; nothing written
--   EMQSTALE extend token mismatch  another claim holds it, or none ever did; nothing written
--   EMQSTALE extend state moved on  it is not in active any more; nothing written
--
-- COST O(log n) in active.

-- INCLUDE row
-- INCLUDE clock
-- INCLUDE held

local token, lease_ms = unpack(ARGV)
local attempts = redis.call('HGET', row, 'attempts')
if not attempts then
  return 0
end
if not is_held(attempts, token) then
  return stale('extend', 'token mismatch')
end
if not redis.call('ZSCORE', base .. 'active', id) then
  return stale('extend', 'state moved on')
end
redis.call('ZADD', base .. 'active', 'XX', from_now(lease_ms), id)
return 1
