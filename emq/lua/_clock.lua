-- clock: the server's time, the only clock that leases and due times know.

-- The time `ms` from now, in whole ms since 1970, as decimal text. `..` would round it.
local function from_now(ms)
  local time = redis.call('TIME')
  return string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ms)
end
