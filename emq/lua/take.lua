-- take: see to what is due and claim what is pending, or say when to come again: a worker's turn.
--
-- KEYS[1] base         -    emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1] count        int  claim at most this many; 0 for the upkeep alone
-- ARGV[2] lease_ms     int  length of the leases, in ms of server time
-- ARGV[3] max_stalled  int  a job whose lease ran out this often is dead
-- ARGV[4] wait_ms      int  how long the worker would wait for a job
-- ARGV[5] waiter       str  the worker's name
--
-- RETURNS
--   [wait_ms, dead, job, ...]  what is due is promoted, and leases that ran out are swept, up to
--                              100 of each, where a job that stalled before is scheduled, within
--                              seconds; the ids that are dead by that; the jobs as claim answers
--                              them. Where none came, the worker's name is in parked and it waits
--                              for wait_ms, or comes again at once where that is 0
--
-- COST O(log n) in the places for each job that it moves.

local base = KEYS[1]
-- INCLUDE claim
-- INCLUDE promote
-- INCLUDE sweep
-- INCLUDE parking

local limit = 100
local count, lease_ms, max_stalled, wait_ms, waiter = unpack(ARGV)
count, wait_ms = tonumber(count), math.min(wait_ms, longest_wait_ms)
if settings.err then
  return settings
end

unpark(waiter)
rouses = false -- it takes what it can itself, and wakes another for the rest
local _, due = promote(limit)
local _, dead, lapsed = sweep(tonumber(max_stalled), limit, true)
rouses = true
local answer = { 0, dead }
local full = due == limit or lapsed == limit
local room = allowed(count)
local more = false
if not is_paused and room > 0 then
  local jobs
  jobs, more = claim(room, lease_ms)
  for _, job in ipairs(jobs) do
    answer[#answer + 1] = job
  end
end
if redis.call('EXISTS', base .. 'pending') == 1 and allowed(1) > 0 then
  rouse()
end
if count == 0 or answer[3] or full or more then
  rouse_for_next()
  return answer
end

local now = tonumber(from_now(0))
if room < 1 then
  wait_ms = math.min(wait_ms, 1000) -- nodes of other makes do not say when a place is free
end
for _, place in ipairs({ 'schedule', 'active' }) do
  local soonest = first_of(place)
  if soonest then
    wait_ms = math.min(wait_ms, math.max(1, math.ceil(soonest - now)))
  end
end
park(waiter, now, wait_ms)
answer[1] = wait_ms
return answer
