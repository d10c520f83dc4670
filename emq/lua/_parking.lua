-- parking: how a worker waits.
--
-- Nobody else looks after what falls due: whoever is back from its wait and does not wait again
-- hands that on, by `rouse_for_next`.
--
-- DERIVES base .. 'parked'
-- DERIVES base .. 'rouse'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'active'

-- INCLUDE waiters

-- Wake a worker where all would wait beyond what falls due next.
local function rouse_for_next()
  if redis.call('EXISTS', base .. 'parked') == 1 then
    for _, place in ipairs({ 'schedule', 'active' }) do
      local soonest = first_of(place)
      if soonest then
        rouse_before(soonest)
      end
    end
  end
end

-- Let a worker wait that found nothing. Entries that are left were for others, which saw as much.
local function park(name, now, wait_ms)
  local parked = base .. 'parked'
  redis.call('DEL', base .. 'rouse')
  -- Who should have been back a second ago is not there any more.
  redis.call('ZREMRANGEBYSCORE', parked, '-inf', string.format('%.0f', now - 1000))
  redis.call('ZADD', parked, string.format('%.0f', now + wait_ms), name)
  redis.call('PEXPIRE', parked, kept_ms)
end

local function unpark(name)
  redis.call('ZREM', base .. 'parked', name)
end
