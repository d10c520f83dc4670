-- sweep_stalled: count the leases that ran out; a job that stalled too often is dead, others wait.
--
-- KEYS[1] base         -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] max_stalled  int  a job that stalled this often is dead
-- ARGV[2] limit        int  at most this many entries are looked at
--
-- RETURNS
--   [recovered, dead]  the ids: active -> pending, or their lane; active -> dead, and a flow's
--                      parent is told; an entry without a payload is dropped, its row left as it
--                      is, and is in neither
--
-- COST O(limit * log n) in active and pending; O(r) in the ring for a laned job.

local base = KEYS[1]
-- INCLUDE sweep

local recovered, dead = sweep(tonumber(ARGV[1]), ARGV[2])
return { recovered, dead }
