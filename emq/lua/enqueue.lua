-- enqueue: admit a job, to be claimed at once or when it falls due.
--
-- KEYS[1]   row      hash   emq:{queue}:job:<id>; it names the base of DERIVES too
-- ARGV[1]   payload  bytes  what the job carries
-- ARGV[2..] wishes   list   names and values in turn: due ('+<ms>' from now, or '<ms>' since 1970),
--                           dedup, dedup_ttl (ms), result_ttl (ms), options
--
-- RETURNS
--   1         admitted: the row is made, and its id waits in pending or schedule
--   0         a job of that id exists; nothing written
--   <holder>  another job holds the deduplication key: its id; nothing written
--   EMQKIND job id must be JOB-namespaced  nothing written
--
-- COST O(log n) in pending or schedule.

-- INCLUDE row
-- INCLUDE admit

if not is_job(id) then
  return refuse_kind()
end
return admit(id, row, ARGV[1], wishes_at(2, #ARGV - 1))
