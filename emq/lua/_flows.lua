-- flows: what the parent of a flow learns of its child's end.
--
-- A parent in this queue is told at once. One in another queue is in another slot: its news goes to
-- this queue's outbox, and a pump carries it. Whatever happens, a removed parent is not made anew.
--
-- DERIVES base .. 'pending'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'flow:outbox'
-- DERIVES base .. 'job:' .. parent
-- DERIVES base .. 'job:' .. parent .. ':dependencies'
-- DERIVES base .. 'job:' .. parent .. ':processed'
-- DERIVES base .. 'job:' .. parent .. ':failed'
-- DERIVES base .. 'job:' .. parent .. ':unsuccessful'

-- INCLUDE places
-- INCLUDE waiters

-- Read the parent that a child's row names, to tell it of the child's end: `done(child, result)`
-- or `died(child, policy, reason)`. Answers nil where there is none to tell. Called before the
-- first write, so that a parent that cannot be read leaves the child as it was.
local function parent_of(parent, queue)
  if not parent or parent == '' then
    return nil
  end
  local this_queue = string.sub(base, 6, -3) -- emq:{<queue>}:

  local function send(...)
    redis.call('RPUSH', base .. 'flow:outbox', table.concat({ ... }, '\0'))
  end
  local function known(policy)
    return policy == 'id' and 'id' or 'fp'
  end

  if queue and queue ~= '' and queue ~= this_queue then
    redis.call('LLEN', base .. 'flow:outbox')
    return {
      done = function(child, result)
        send(queue, parent, child, result)
      end,
      died = function(child, policy, reason)
        send('', 'fail', queue, parent, child, known(policy), reason)
      end,
    }
  end

  local row = base .. 'job:' .. parent
  local fields = redis.call('HMGET', row, 'state', 'parent', 'parent_queue', 'parent_policy')
  local state, above, above_queue, above_policy = unpack(fields)
  if not state then
    return nil
  end
  if above == '' then
    above = nil
  end

  for _, of in ipairs({ ':processed', ':failed', ':unsuccessful' }) do
    redis.call('HLEN', row .. of)
  end
  if redis.call('EXISTS', row .. ':dependencies') == 1 then
    redis.call('INCRBY', row .. ':dependencies', '0') -- an error where it is no number
  end
  if above then
    redis.call('LLEN', base .. 'flow:outbox')
  end
  check_places('pending', 'dead')

  local function count_down()
    local left = redis.call('DECR', row .. ':dependencies')
    if left <= 0 and state == 'awaiting_children' then
      redis.call('HSET', row, 'state', 'pending')
      redis.call('ZADD', base .. 'pending', '0', parent)
      rouse()
    end
  end

  return {
    done = function(child, result)
      redis.call('HSET', row .. ':processed', child, result)
      -- A child that died ignored was counted then: if it was run again, it does not count twice.
      if redis.call('HEXISTS', row .. ':unsuccessful', child) == 0 then
        count_down()
      end
    end,
    died = function(child, policy, reason)
      if known(policy) == 'id' then
        if redis.call('HSET', row .. ':unsuccessful', child, reason) == 1 then
          count_down()
        end
      else
        redis.call('HSET', row .. ':failed', child, reason)
        if state == 'awaiting_children' or state == 'pending' then
          state = 'dead'
          redis.call('HSET', row, 'state', 'dead')
          redis.call('ZREM', base .. 'pending', parent)
          redis.call('ZADD', base .. 'dead', '0', parent)
        end
      end
      -- A dead parent is a dead child of its own parent, whom a pump tells, in this queue too.
      if state == 'dead' and above then
        send('', 'fail', above_queue or this_queue, above, parent, known(above_policy), reason)
      end
    end,
  }
end
