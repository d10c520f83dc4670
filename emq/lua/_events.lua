-- events: what is published of a transition, for a queue whose settings ask for it.
--
-- A message is one JSON object whose values are all texts: {"event":"completed","job":"JOB..."}.
-- `base .. 'events'` is a channel, no key.

-- INCLUDE queue

-- Say, if the settings ask for it, that `event` happened to a job, or to the queue where `job` is
-- nil; then names and texts. All is made here alone, since most queues ask for nothing.
local function announce(event, job, ...)
  if not announces then
    return
  end

  -- A text as JSON has it. Whatever is no UTF-8 becomes the replacement character, byte by byte.
  local function quoted(text)
    local escapes = {
      ['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t',
    }
    text = string.gsub(text, '[%c"\\]', function(char)
      return escapes[char] or string.format('\\u%04x', string.byte(char))
    end)
    if not string.find(text, '[\128-\255]') then
      return '"' .. text .. '"'
    end
    -- The sequences of UTF-8; none of them overlong, a surrogate, or above 10FFFF.
    local sequences = {
      '^[\194-\223][\128-\191]',
      '^\224[\160-\191][\128-\191]',
      '^[\225-\236\238\239][\128-\191][\128-\191]',
      '^\237[\128-\159][\128-\191]',
      '^\240[\144-\191][\128-\191][\128-\191]',
      '^[\241-\243][\128-\191][\128-\191][\128-\191]',
      '^\244[\128-\143][\128-\191][\128-\191]',
    }
    local parts, at = {}, 1
    while at <= #text do
      local _, last = string.find(text, '^[\1-\127]+', at)
      for i = 1, last and 0 or #sequences do
        _, last = string.find(text, sequences[i], at)
        if last then
          break
        end
      end
      parts[#parts + 1] = last and string.sub(text, at, last) or '\239\191\189'
      at = (last or at) + 1
    end
    return '"' .. table.concat(parts) .. '"'
  end

  local parts = { '"event":' .. quoted(event) }
  if job then
    parts[2] = '"job":' .. quoted(job)
  end
  local more = { ... }
  for i = 1, #more, 2 do
    parts[#parts + 1] = quoted(more[i]) .. ':' .. quoted(more[i + 1])
  end
  redis.call('PUBLISH', base .. 'events', '{' .. table.concat(parts, ',') .. '}')
end
