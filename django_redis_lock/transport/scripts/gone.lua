-- Shared by the scripts that look for waiters that are gone; prepended to each of them.

-- Return a function that tells whether nothing was heard of a waiter's process for `limit` ms. It
-- was killed, it is stopped, or its host has vanished. A poller may look more seldom. `heard` is
-- KEYS[5] of common.lua. Nobody is gone if that can't be read, or is not used.
local function gone_for(limit, heard, now)
  local number, scores = redis.pcall('ZCARD', heard), {}
  local known = type(number) == 'number' and number > 0
  local function is_gone(entry)
    local channel = string.match(entry, '^%S+')
    if not known or not channel then
      return false
    end
    if scores[channel] == nil then
      scores[channel] = redis.pcall('ZSCORE', heard, channel)
    end
    local at = tonumber(scores[channel] or string.match(entry, '"since":(%d+)}$'))
    local polled = tonumber(string.match(channel, '^@poll:(%d+)') or 0)
    return at ~= nil and math.abs(now - math.abs(at)) > math.max(limit, polled / 2)
  end
  return is_gone
end
