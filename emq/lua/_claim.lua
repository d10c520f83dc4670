-- claim: take the oldest flat job under a lease.
--
-- DERIVES base .. 'meta'
-- DERIVES base .. 'pending'
-- DERIVES base .. 'active'
-- DERIVES base .. 'job:' .. id

-- INCLUDE clock
-- INCLUDE lanes

local function is_paused()
  return redis.call('HGET', base .. 'meta', 'paused')
end

-- Answers {id, payload, token}, with the group of a row that has one; false where nothing waits; 1
-- where it met ghosts alone, and there may be more.
local function claim(lease_ms)
  for _ = 1, 100 do -- ghosts are rare; the bound keeps one call short however many there are
    local id = redis.call('ZPOPMIN', base .. 'pending')[1]
    if not id then
      return false
    end
    local row = base .. 'job:' .. id
    local job = redis.call('HMGET', row, 'attempts', 'payload', 'group')
    local payload, group = job[2], job[3]
    if payload then
      local token = (tonumber(job[1]) or 0) + 1
      redis.call('HSET', row, 'state', 'active', 'attempts', token)
      redis.call('ZADD', base .. 'active', from_now(lease_ms), id)
      if not group then
        return { id, payload, token }
      end
      -- A laned row among the flat ones: its settling will count it out, so it is counted in.
      lane_of(group).take()
      return { id, payload, token, group }
    end
  end
  return 1
end
