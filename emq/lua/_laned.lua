-- laned: where jobs wait beside `pending`.
--
-- DERIVES base .. 'ring'
-- DERIVES base .. 'paused'

-- INCLUDE try

-- The groups that have a lane with jobs, some without among them, where nothing is in flight: no
-- lane is full then, so a lane is in the ring, or it is paused.
local function laned()
  local groups = try('LRANGE', base .. 'ring', '0', '-1') or {}
  for _, group in ipairs(try('SMEMBERS', base .. 'paused') or {}) do
    groups[#groups + 1] = group
  end
  return groups
end
