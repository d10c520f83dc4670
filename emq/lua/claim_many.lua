-- claim_many: take the oldest pending jobs, all under one end of lease, unless the queue is paused.
--
-- KEYS[1] base      -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] count     int  at most this many
-- ARGV[2] lease_ms  int  length of the leases, in ms of server time
--
-- RETURNS
--   [job, ...]  pending -> active, oldest first, each as claim answers it; fewer, or none, where
--               fewer are pending, or where the queue is paused or at its ceiling
--   1           only entries without a payload were met, which were dropped: claim again
--
-- COST O(count * log n) in pending and active. The caller bounds the count of one call.

local base = KEYS[1]
-- INCLUDE claim

if settings.err then
  return settings
end
if is_paused then
  return {}
end
local jobs, more = claim(allowed(tonumber(ARGV[1])), ARGV[2])
return jobs[1] and jobs or (more and 1) or {}
