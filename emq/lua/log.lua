-- log: add a line to a job's log.
--
-- KEYS[1] row    hash   emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] line   bytes  the line
-- ARGV[2] keep   int    how many lines to keep, the last ones; 0 for all
-- ARGV[3] token  int?   the attempts value that claim returned; left out, nobody's leave is asked
--
-- DERIVES base .. 'job:' .. id .. ':logs'
--
-- RETURNS
--   <lines>  how many there are now
--   0        no such job; nothing written
--   EMQSTALE log token mismatch  another claim holds it, or none ever did; nothing written
--   EMQSTALE log state moved on  it was settled with this token already; nothing written
--
-- COST O(1), or the number of lines that are dropped.

-- INCLUDE row
-- INCLUDE held
-- INCLUDE settled

local line, keep, token = unpack(ARGV)
local job = redis.call('HMGET', row, 'attempts', 'state')
local attempts, state = job[1], job[2]
if redis.call('EXISTS', row) == 0 then
  return 0
end
if token and not is_held(attempts, token) then
  return stale('log', 'token mismatch')
end
if token and is_settled(state) then
  return stale('log', 'state moved on')
end
local lines = redis.call('RPUSH', row .. ':logs', line)
keep = tonumber(keep)
if keep > 0 and lines > keep then
  redis.call('LTRIM', row .. ':logs', -keep, '-1')
  return keep
end
return lines
