-- read: what a row says, whoever wrote it.

-- INCLUDE try

-- Read fields of a row. A key of another type is no row: it reads as one without a payload does.
local function read(row, ...)
  return try('HMGET', row, ...) or {}
end

-- The whole number that a text says, below 2^53. Anything else counts nothing.
local function count_of(text)
  local count = tonumber(text and string.match(text, '^%d+$') or 0)
  return count < 2 ^ 53 and count or 0
end
