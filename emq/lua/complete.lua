-- complete: settle a claimed job as done, if the caller still holds it.
--
-- KEYS[1]   row    hash  emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1]   token  int   the attempts value that claim returned
-- ARGV[2..] kept   list  for how many ms to keep the outcome, or '' for what the row says; and the
--                        result; left out, a flow's parent gets the id; both may be left out
--
-- RETURNS
--   1  gone, with its logs; a flow's parent is told, and who waits for the outcome
--   0  no such job; nothing written
--   EMQSTALE complete token mismatch  another claim holds it, or none ever did; nothing written
--   EMQSTALE complete state moved on  it was settled with this token already; nothing written
--
-- COST O(log n) in active; O(r) in the ring for a laned job.

-- INCLUDE row
-- INCLUDE complete

return complete(ARGV[1], ARGV[2], ARGV[3])
