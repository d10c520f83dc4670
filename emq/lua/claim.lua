-- claim: take the oldest pending job under a lease, unless the queue is paused.
--
-- KEYS[1] base      -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] lease_ms  int?  length of the lease, in ms of server time; left out, 30000
--
-- RETURNS
--   [id, payload, token]  pending -> active; the row's attempts are the token
--   [id, payload, token, group, excused, options]  the same, for a row with more to tell: its
--                         group or nil, how many of its claims are no attempts, and its wishes
--   nil                   nothing is pending, or the queue is paused or at its ceiling; nothing
--                         written
--   1                     100 entries without a payload were dropped, and no job found yet
--
-- COST O(log n) in pending and active.

local base = KEYS[1]
-- INCLUDE claim

if settings.err then
  return settings
end
if is_paused then
  return false
end
return claim_one(ARGV[1] or 30000)
