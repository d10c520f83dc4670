-- complete_and_claim: settle a claimed job as done, and take the next one in the same step.
--
-- KEYS[1]   row       hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1]   token     int   the attempts value that claim returned
-- ARGV[2]   lease_ms  int   length of the next job's lease, in ms of server time
-- ARGV[3..] kept      list  as in complete
--
-- RETURNS
--   [id, payload, token]  completed; the next job is active, as claim answers it
--   [id, payload, token, group, excused, options]  the same, for a row with more to tell
--   nil                   completed; nothing is pending, or the queue is paused or at its ceiling
--   1                     completed; of what is pending, only ghosts were met: claim again
--   0                     no such job; nothing written, nothing claimed
--   EMQSTALE complete token mismatch  nothing written, nothing claimed
--   EMQSTALE complete state moved on  nothing written, nothing claimed
--
-- COST O(log n) in pending and active; O(r) in the ring for a laned job.

-- INCLUDE row
-- INCLUDE places
-- INCLUDE complete
-- INCLUDE claim

local token, lease_ms, keep_ms, result = unpack(ARGV)
if settings.err then
  return settings
end
check_places('pending')
local verdict = complete(token, keep_ms, result)
if verdict ~= 1 then
  return verdict
end
if is_paused then
  return false
end
return claim_one(lease_ms)
