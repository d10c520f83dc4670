-- try: what a key of another's may make fail, without harm to the jobs.

-- Call, and answer nil where the key is of another type, or its text no number. Any other error is
-- raised: it is not the key's.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then
    return reply
  end
  for _, reason in ipairs({ 'WRONGTYPE', 'not an integer', 'overflow' }) do
    if string.find(reply.err, reason, 1, true) then
      return nil
    end
  end
  return redis.call(...)
end
