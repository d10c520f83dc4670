-- held: whose job it is.

-- The token of the row's last claim counts, and no other. Token 0 is what a row holds before its
-- first claim: it is nobody's.
local function is_held(attempts, token)
  return attempts == token and token ~= '0'
end

local function stale(verb, reason)
  return redis.error_reply('EMQSTALE ' .. verb .. ' ' .. reason)
end
