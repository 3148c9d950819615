-- Join the waiters of a lock that another holds, or wait on: the end of acquire.lua.

-- Put a waiter that has lost its place before the first who joined later. Returns false if there is
-- none, or if this user may not do that.
local function come_back(entry)
  local since = tonumber(string.match(entry, '"since":(%d+)}$') or math.huge)
  for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    if tonumber(string.match(other, '"since":(%d+)}$') or 0) > since then
      return type(redis.pcall('LINSERT', KEYS[2], 'BEFORE', other, entry)) == 'number'
    end
  end
  return false
end

-- Drop the waiters whose processes are gone. One process does this: that of the first waiter.
local function drop_gone()
  local gone = gone_for(5000, KEYS[5], now)
  local first = redis.call('LRANGE', KEYS[2], 0, 0)[1]
  if string.match(first, '^%S*') == ARGV[5] or gone(first) then
    for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
      if gone(other) then
        redis.call('LREM', KEYS[2], 1, other)
      end
    end
  end
end

local kind = holder and 0 or 3
if ARGV[5] ~= '' then
  local entry = table.concat({ARGV[5], ARGV[1], ARGV[2], ARGV[3]}, ' ')
  local asked = tonumber(ARGV[6])
  if redis.call('LPOS', KEYS[2], entry) then
    kind = kind + 2
    contended().hear(ARGV[5], now)
    -- If the server did not answer for a while, or its clock was set, nobody was heard.
    if asked and math.abs(now - asked) <= 3000 then
      drop_gone()
    end
  else
    if not (asked and come_back(entry)) then
      redis.call('RPUSH', KEYS[2], entry)
    end
    kind = kind + 1
    if redis.pcall('ZADD', KEYS[5], now, ARGV[5]) == 1 then
      redis.pcall('PEXPIRE', KEYS[5], 120000)
    end
  end
  local list = string.match(ARGV[5], '^@list:(.*)$')
  if list then
    redis.call('SET', list .. ':alive', '', 'PX', 5000)
  end
  -- Waiters look several times within this time. A queue that no one looks at expires.
  local polled = tonumber(string.match(ARGV[5], '^@poll:(%d+)') or 0)
  redis.call('PEXPIRE', KEYS[2], math.max(10000, polled))
end
ttl = due and due - now or redis.call('PTTL', KEYS[1])
-- What looks like a fence may be another program's number, of any length.
return string.format('-%s %.0f %.0f %.0f', string.sub(fence or '0', 1, 20), ttl, now, kind)
