-- repair: say where a job's row and its places disagree, and mend what can be mended safely.
--
-- KEYS[1]   base   -     emq:{queue}:, the base of DERIVES; no key has this name
-- ARGV[1]   mend   int   1: mend; 0: only say
-- ARGV[2..] names  list  what to look at: a job's id, g:<group>:<id> for an entry of a lane, or
--                        de:<dedup> for a deduplication key
--
-- DERIVES base .. 'active'
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'dead'
-- DERIVES base .. 'job:' .. id
-- DERIVES base .. 'job:' .. id .. ':lock'
-- DERIVES base .. 'de:' .. dedup
--
-- RETURNS
--   [name, fault, detail, mended, ...]  four texts a fault, mended 1 or 0; none for what is right.
--              rowless: in places, without a row; its entries are dropped
--              ghost:   a row without a payload; its entries are dropped, the row is left
--              lost:    a row in no place; it waits again, or is dead if that is its state
--              twice:   in more than one place; left
--              state:   the row says another place than where it is; the row is set right
--              unknown: in no place, and its state is none of ours; left
--              stray:   in the lane of a group that is not its row's; the entry is dropped, and
--                       the job looked at
--              lock:    on a job that is gone; it is deleted
--              dedup:   held by a job that is gone; it is deleted
--
-- COST O(names * log n) in the places; O(r) in the ring for a laned job.

local base = KEYS[1]
-- INCLUDE line_up

local mends = ARGV[1] == '1'
local places = {
  { 'pending', 'pending' },
  { 'active', 'active' },
  { 'schedule', 'scheduled' },
  { 'dead', 'dead' },
}
local ours = { pending = true, active = true, scheduled = true, dead = true }
local faults = {}

local function tell(name, fault, detail, mended)
  for _, text in ipairs({ name, fault, detail, mended and '1' or '0' }) do
    faults[#faults + 1] = text
  end
end

-- Where a job is: the places' names and keys, and the state that fits.
local function places_of(id, lane)
  local found = {}
  for _, place in ipairs(places) do
    if redis.call('ZSCORE', base .. place[1], id) then
      found[#found + 1] = { name = place[1], key = base .. place[1], state = place[2] }
    end
  end
  if lane and redis.call('ZSCORE', lane.key, id) then
    found[#found + 1] = { name = 'lane', key = lane.key, state = 'pending' }
  end
  return found
end

local function names_of(found)
  local told = {}
  for i, place in ipairs(found) do
    told[i] = place.name
  end
  return table.concat(told, ' ')
end

local function drop(id, found, lane)
  for _, place in ipairs(found) do
    redis.call('ZREM', place.key, id)
    if lane and place.name == 'active' then
      lane.free()
    elseif lane and place.name == 'lane' and redis.call('EXISTS', lane.key) == 0 then
      lane.leave_ring()
    end
  end
end

local function look_at_rowless(id, row)
  local found = places_of(id)
  if found[1] then
    if mends then
      drop(id, found)
    end
    tell(id, 'rowless', names_of(found), mends)
  end
  if redis.call('EXISTS', row .. ':lock') == 1 then
    if mends then
      redis.call('DEL', row .. ':lock')
    end
    tell(id, 'lock', '', mends)
  end
end

local function look_at_ghost(id, row, lane)
  if redis.call('HLEN', row) == 1 and redis.call('HEXISTS', row, 'lock') == 1 then
    -- Locking a job that is gone made the row; no job of this id could be enqueued again.
    local found = places_of(id)
    if mends then
      drop(id, found)
      redis.call('DEL', row, row .. ':lock')
    end
    return tell(id, 'lock', names_of(found), mends)
  end
  local found = places_of(id, lane)
  if mends then
    drop(id, found, lane)
  end
  return tell(id, 'ghost', names_of(found), mends and found[1])
end

local function look_at_lost(id, row, lane, state)
  if state == 'awaiting_children' then
    return
  end
  if state and not ours[state] then
    return tell(id, 'unknown', state, false)
  end
  if mends then
    if state == 'dead' then
      redis.call('ZADD', base .. 'dead', '0', id)
    else
      line_up(id, row, lane)
    end
  end
  return tell(id, 'lost', state or '', mends)
end

local function look_at_job(id)
  local row = base .. 'job:' .. id
  if redis.call('EXISTS', row) == 0 then
    return look_at_rowless(id, row)
  end
  local job = redis.call('HMGET', row, 'state', 'payload', 'group')
  local state, lane = job[1], lane_of(job[3])
  if not job[2] then
    return look_at_ghost(id, row, lane)
  end
  local found = places_of(id, lane)
  if not found[1] then
    return look_at_lost(id, row, lane, state)
  end
  if found[2] then
    return tell(id, 'twice', names_of(found), false)
  end
  if state ~= found[1].state then
    if mends then
      redis.call('HSET', row, 'state', found[1].state)
    end
    return tell(id, 'state', (state or '') .. ' ' .. found[1].name, mends)
  end
end

-- An entry of a lane whose row says so is looked at with the row.
local function look_at_entry(name, group, id)
  local lane, row = lane_of(group), base .. 'job:' .. id
  local own = redis.call('HGET', row, 'group')
  if own == group or not redis.call('ZSCORE', lane.key, id) then
    return
  end
  if mends then
    drop(id, { { name = 'lane', key = lane.key } }, lane)
  end
  if redis.call('EXISTS', row) == 0 then
    return tell(name, 'rowless', 'lane', mends)
  end
  tell(name, 'stray', own or '', mends)
  if mends then
    look_at_job(id)
  end
end

local function look_at_dedup(name)
  local holder = redis.call('GET', base .. name)
  if holder and redis.call('EXISTS', base .. 'job:' .. holder) == 0 then
    if mends then
      redis.call('DEL', base .. name)
    end
    tell(name, 'dedup', holder, mends)
  end
end

for i = 2, #ARGV do
  local name = ARGV[i]
  local group, id = string.match(name, '^g:([^:]+):([^:]+)$')
  if group then
    look_at_entry(name, group, id)
  elseif string.sub(name, 1, 3) == 'de:' then
    look_at_dedup(name)
  else
    look_at_job(name)
  end
end
return faults
