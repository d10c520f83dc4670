-- claim: take the oldest pending job under a lease, unless the queue is paused.
--
-- KEYS[1] base      -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] lease_ms  int?  length of the lease, in ms of server time; left out, 30000
--
-- RETURNS
--   [id, payload, token]         pending -> active; the row's attempts are the token
--   [id, payload, token, group]  the same, for a row that carries a group
--   nil                          nothing is pending, or the queue is paused; nothing written
--   1                            100 entries without a payload were dropped, and no job found yet
--
-- COST O(log n) in pending and active.

local base = KEYS[1]
-- INCLUDE claim

if is_paused() then
  return false
end
return claim(ARGV[1] or 30000)
