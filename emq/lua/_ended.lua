-- ended: what goes with a job that is done, dead or removed.
--
-- DERIVES base .. 'de:' .. dedup
-- DERIVES base .. 'job:' .. id .. ':result'

-- INCLUDE read

-- Let another job have the deduplication key, if this one holds it.
local function release(id, dedup)
  if dedup and try('GET', base .. 'de:' .. dedup) == id then
    redis.call('DEL', base .. 'de:' .. dedup)
  end
end

-- Count a job that ended. Where the counter is another's, the job ends all the same.
local function tally(how)
  try('HINCRBY', base .. 'metrics:' .. how, 'count', '1')
end

-- Keep how a job ended, for who asked for that, and tell those who wait: the key's name is the
-- channel's too.
local function keep(row, ttl_ms, state, field, text)
  if count_of(ttl_ms) == 0 then
    return
  end
  local key = row .. ':result'
  redis.call('DEL', key)
  redis.call('HSET', key, 'state', state)
  if text then
    redis.call('HSET', key, field, text)
  end
  redis.call('PEXPIRE', key, ttl_ms)
  redis.call('PUBLISH', key, state)
end
