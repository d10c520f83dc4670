-- settled: whether a job's holder has had its say.

-- The token counts until the next claim, the place does not.
local function is_settled(state)
  return state ~= 'active' and state ~= 'pending'
end
