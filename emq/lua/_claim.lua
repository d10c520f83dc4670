-- claim: take the oldest flat jobs under a lease.
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'active'
-- DERIVES base .. 'job:' .. id

-- INCLUDE queue
-- INCLUDE read
-- INCLUDE clock
-- INCLUDE events
-- INCLUDE lanes
-- INCLUDE waiters

-- How many of `count` jobs may be claimed, by the queue's ceiling. Raises where `active` is no set,
-- before a job has left for it.
local function allowed(count)
  local active = redis.call('ZCARD', base .. 'active')
  if ceiling > 0 then
    return math.min(count, ceiling - active)
  end
  return count
end

-- Take up to `count` jobs, all to the same end of lease. Answers them, and whether there may be
-- more: ghosts are dropped, but not without end. A job is {id, payload, token}, and where its row
-- has more to tell {id, payload, token, group or false, excused, options or ''}.
local function claim(count, lease_ms)
  local jobs, ends, looks = {}, nil, count + 100
  while #jobs < count do
    if looks <= 0 then
      return jobs, true
    end
    local popped = redis.call('ZPOPMIN', base .. 'pending', count - #jobs)
    if not popped[1] then
      break
    end
    for i = 1, #popped, 2 do
      local id = popped[i]
      local row = base .. 'job:' .. id
      local job = read(row, 'attempts', 'payload', 'group', 'stalled', 'excused', 'options')
      local payload, group = job[2], job[3]
      looks = looks - 1
      if payload then
        ends = ends or from_now(lease_ms)
        local token = count_of(job[1]) + 1
        redis.call('HSET', row, 'state', 'active', 'attempts', token)
        redis.call('ZADD', base .. 'active', ends, id)
        if group then
          -- A laned row among the flat ones: its settling will count it out, so it is counted in.
          lane_of(group).take()
        end
        if group or job[4] or job[5] or job[6] then
          local excused = count_of(job[4]) + count_of(job[5])
          jobs[#jobs + 1] = { id, payload, token, group, excused, job[6] or '' }
        else
          jobs[#jobs + 1] = { id, payload, token }
        end
        announce('active', id)
      end
    end
  end
  if ends and tonumber(lease_ms) < longest_wait_ms then
    rouse_before(ends)
  end
  return jobs, false
end

-- Take one job. Answers it, false where nothing waits, 1 where only ghosts were met so far.
local function claim_one(lease_ms)
  if allowed(1) < 1 then
    return false
  end
  local jobs, more = claim(1, lease_ms)
  return jobs[1] or (more and 1) or false
end
