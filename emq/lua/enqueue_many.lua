-- enqueue_many: admit jobs, in order, as enqueue does each.
--
-- KEYS[1]   base   -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1..] items  list  id, payload, due for each; due is '' for at once, else as in enqueue
--
-- DERIVES base .. 'job:' .. id
--
-- RETURNS
--   <verdicts>  one character an item: 1 admitted, 0 a job of that id exists
--   EMQKIND job id must be JOB-namespaced  nothing written, for any item
--
-- COST O(items * log n) in pending or schedule. The caller bounds the items of one call.

local base = KEYS[1]
-- INCLUDE admit

for i = 1, #ARGV, 3 do
  if not is_job(ARGV[i]) then
    return refuse_kind()
  end
end
local verdicts = {}
for i = 1, #ARGV, 3 do
  local id, payload, due = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  verdicts[#verdicts + 1] = admit(id, base .. 'job:' .. id, payload, due)
end
return table.concat(verdicts)
