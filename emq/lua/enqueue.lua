-- enqueue: admit a job, to be claimed at once or when it falls due.
--
-- KEYS[1] row      hash   emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1] payload  bytes  what the job carries
-- ARGV[2] due      str?   '+<ms>' from now, or '<ms>' since 1970; left out for at once
--
-- RETURNS
--   1        admitted: the row is made, and its id waits in pending or schedule
--   0        a job of that id exists; nothing written
--   EMQKIND job id must be JOB-namespaced  nothing written
--
-- COST O(log n) in pending or schedule.

-- INCLUDE row
-- INCLUDE admit

if not is_job(id) then
  return refuse_kind()
end
return admit(id, row, ARGV[1], ARGV[2])
