-- enqueue_many: admit jobs, in order, as enqueue does each.
--
-- KEYS[1]   base   -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1..] items  list  for each: id, payload, how many texts of wishes follow, and those
--
-- RETURNS
--   <verdicts>            one character an item: 1 admitted, 0 a job of that id exists
--   [verdicts, id, ...]   the same where another job holds an item's deduplication key: 2, and the
--                         ids of those jobs in order
--   EMQKIND job id must be JOB-namespaced  nothing written, for any item
--
-- COST O(items * log n) in pending or schedule. The caller bounds the items of one call.

local base = KEYS[1]
-- INCLUDE places
-- INCLUDE admit

local wished = false
local at = 1
while at <= #ARGV do
  if not is_job(ARGV[at]) then
    return refuse_kind()
  end
  wished = wished or ARGV[at + 2] ~= '0'
  at = at + 3 + ARGV[at + 2]
end
check_places('pending', wished and 'schedule' or nil)
local verdicts, holders = {}, {}
at = 1
while at <= #ARGV do
  local id, payload, wishes = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local verdict = admit(id, base .. 'job:' .. id, payload, wishes_at(at + 3, wishes))
  if type(verdict) == 'string' then
    holders[#holders + 1] = verdict
    verdict = 2
  end
  verdicts[#verdicts + 1] = verdict
  at = at + 3 + wishes
end
if holders[1] then
  return { table.concat(verdicts), unpack(holders) }
end
return table.concat(verdicts)
