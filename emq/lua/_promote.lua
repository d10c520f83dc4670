-- promote: let the scheduled jobs wait that have fallen due.
--
-- DERIVES base .. 'schedule'
-- DERIVES base .. 'job:' .. id

-- INCLUDE clock
-- INCLUDE places
-- INCLUDE read
-- INCLUDE line_up
-- INCLUDE events

-- Answers how many jobs were moved, and how many entries were looked at.
local function promote(limit)
  local due = redis.call(
    'ZRANGEBYSCORE', base .. 'schedule', '-inf', from_now(0), 'LIMIT', '0', limit
  )
  check_places('pending')
  local moved = 0
  for _, id in ipairs(due) do
    local row = base .. 'job:' .. id
    local job = read(row, 'payload', 'group')
    redis.call('ZREM', base .. 'schedule', id)
    if job[1] then
      line_up(id, row, lane_of(job[2]))
      announce('promoted', id)
      moved = moved + 1
    end
  end
  return moved, #due
end
