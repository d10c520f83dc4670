-- waiters: the workers that found nothing to do, and how they hear of a job.
--
-- Such a worker writes its name and the end of its wait into `parked`, in the step that found
-- nothing, then blocks on the list `rouse`, and takes its name out when it is back. Whoever makes a
-- job claimable puts an entry on the list, which the server hands to whoever has blocked longest.
-- An entry names nobody, so none is lost on a worker that is not there any more. There are never
-- more entries than names: where nobody waits, no key is left behind. One too many wakes a worker
-- in vain. What nobody fetches goes away by itself.
--
-- A wake is a hint: a key of another's in its way keeps no job from moving.
--
-- DERIVES base .. 'parked'
-- DERIVES base .. 'rouse'
-- DERIVES base .. 'pending'

-- INCLUDE queue
-- INCLUDE try

local longest_wait_ms = 5000 -- no worker waits longer, so none need be told of what is later
local kept_ms = longest_wait_ms + 1000
local rouses = true

local function rouse()
  if not rouses or is_paused then
    return
  end
  local waiting = try('ZCARD', base .. 'parked') or 0
  if waiting > 0 and (try('LLEN', base .. 'rouse') or waiting) < waiting then
    redis.call('LPUSH', base .. 'rouse', '1')
    redis.call('PEXPIRE', base .. 'rouse', kept_ms)
  end
end

-- Answers when the first entry of a place falls due, or nil.
local function first_of(place)
  return (try('ZRANGE', base .. place, '0', '0', 'WITHSCORES') or {})[2]
end

-- Wake a worker where all would wait beyond `time`, since something falls due then.
local function rouse_before(time)
  local soonest = first_of('parked')
  if soonest and tonumber(soonest) > tonumber(time) then
    rouse()
  end
end

-- A job has left `active`: at the ceiling, workers wait beside jobs that they may not claim.
local function rouse_below_ceiling()
  if ceiling > 0 and redis.call('EXISTS', base .. 'pending') == 1 then
    rouse()
  end
end
