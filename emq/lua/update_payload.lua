-- update_payload: replace what a job carries.
--
-- KEYS[1] row      hash   emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] payload  bytes  what it carries from now on; who holds it keeps what it was given
--
-- RETURNS
--   1  replaced
--   0  no such job; nothing written
--
-- COST O(1).

-- INCLUDE row
-- INCLUDE events

if redis.call('EXISTS', row) == 0 then
  return 0
end
redis.call('HSET', row, 'payload', ARGV[1])
announce('updated', id)
return 1
