-- locks: who may not be removed, because somebody works on it.
--
-- The lock is said twice: as a key of its own, for servers of all ages, and as a field of the row,
-- which ends by itself where the server knows such fields (Valkey 9, Redis 7.4). Whoever removes a
-- job honours both.
--
-- DERIVES base .. 'job:' .. id .. ':lock'

-- INCLUDE try

local function lock(row, token, ttl_ms)
  redis.call('SET', row .. ':lock', token, 'PX', ttl_ms)
  redis.call('HSET', row, 'lock', token)
  redis.pcall('HPEXPIRE', row, ttl_ms, 'FIELDS', '1', 'lock')
end

local function unlock(row)
  redis.call('DEL', row .. ':lock')
  redis.call('HDEL', row, 'lock')
end

local function is_locked(row)
  return redis.call('EXISTS', row .. ':lock') == 1 or redis.call('HEXISTS', row, 'lock') == 1
end

local function is_locked_by(row, token)
  return try('GET', row .. ':lock') == token or redis.call('HGET', row, 'lock') == token
end
