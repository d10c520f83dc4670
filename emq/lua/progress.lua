-- progress: write down how far a job has come, and publish it.
--
-- KEYS[1] row    hash   emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] text   bytes  how far
-- ARGV[2] token  int?   the attempts value that claim returned; left out, nobody's leave is asked
--
-- RETURNS
--   1  written, and published on the queue's events whether its settings ask for them or not
--   0  no such job; nothing written
--   EMQSTALE progress token mismatch  another claim holds it, or none ever did; nothing written
--   EMQSTALE progress state moved on  it was settled with this token already; nothing written
--
-- COST O(1).

-- INCLUDE row
-- INCLUDE held
-- INCLUDE settled
-- INCLUDE events

local text, token = unpack(ARGV)
local job = redis.call('HMGET', row, 'attempts', 'state')
local attempts, state = job[1], job[2]
if redis.call('EXISTS', row) == 0 then
  return 0
end
if token and not is_held(attempts, token) then
  return stale('progress', 'token mismatch')
end
if token and is_settled(state) then
  return stale('progress', 'state moved on')
end
redis.call('HSET', row, 'progress', text)
announces = '1' -- its listeners ask for it
announce('progress', id, 'progress', text)
return 1
