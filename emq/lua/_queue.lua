-- queue: the queue's own settings, read once, before anything is written.
--
-- A queue whose settings cannot be read goes on settling what it holds; a claim says the error.
--
-- DERIVES base .. 'meta'

local settings = redis.pcall('HMGET', base .. 'meta', 'paused', 'concurrency', 'events')
local is_paused, announces = settings[1], settings[3]
-- What is no whole number, as an operator's hand may have written it, is no ceiling.
local ceiling = tonumber(settings[2] and string.match(settings[2], '^%d+$') or 0)
