-- promote: let the scheduled jobs wait that have fallen due.
--
-- KEYS[1] base   -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] limit  int  at most this many entries are looked at
--
-- RETURNS
--   <moved>  how many jobs: schedule -> pending, or their lane; an entry without a payload is
--            dropped, its row left as it is, and not counted
--
-- COST O(limit * log n) in schedule and pending; O(r) in the ring for a laned job.

local base = KEYS[1]
-- INCLUDE promote

return (promote(ARGV[1]))
