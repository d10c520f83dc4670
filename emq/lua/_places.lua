-- places: the sets that jobs lie in.

-- Raise the error of a place that is no set, before anything is written: a job that has left one
-- place must not find the other closed.
local function check_places(...)
  for _, place in ipairs({ ... }) do
    redis.call('ZCARD', base .. place)
  end
end
