-- Take the lock, or join its waiters.
-- KEYS: see common.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name,
-- ARGV[5] channel on which the caller waits, or '' not to wait,
-- ARGV[6] '' for a caller that has not waited yet; else the server's clock (ms) when it last asked,
-- or 0 if it has not asked regularly for long enough to tell who is gone,
-- ARGV[7] given if the caller then waits for replicas, which requires a write of its own.
-- Returns the fence               taken now, with the whole lease, while no one waited
--         "fence ttl now"         the caller's turn, or its lock already: a grant that crossed,
--                                 or a reply that was lost
--         "-fence ttl now kind"   held by another, under that fence; kind 0: not waiting, 1: joined
--                                 just now, 2: waiting since before; plus 3 if the holder is
--                                 another program (fence 0), which does not notify the waiters when
--                                 it frees the lock
-- ttl in ms, -1 for a lease without end; of a lock that is not claimed yet, until its claim is due.
-- now is the server's clock in ms.
-- include base
local lease, moment = tonumber(ARGV[2]), clock()
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return give(ARGV[4], ARGV[1], lease, ARGV[3], moment)
end
-- include common

-- Take the lock back from a process that did not claim it in time, because it does not run or does
-- not receive: all its waiters are passed over until it is seen. Then the lock has to be handed off.
-- `held` is its value, `now` the clock in ms.
local function take_back(held, now)
  local token, lease_ms, channel, record =
    string.match(held, '^(%S+) %d+ {"unclaimed":"%d+ (%d+) ([^%s"]+)",(.*)$')
  if ARGV[5] ~= '' then
    note(ARGV[5], now)
  end
  -- A poller that does not claim its lock, though its process has polled since, is gone. To put it
  -- back would delay the others again and again.
  local polled = poll_time(channel)
  if polled and (channel == ARGV[5]
      or (read_seen(true)[channel] or 0) > now - math.max(POLLED, polled / 2)) then
    return
  end
  note(channel, -now)
  -- The waiter keeps its position, unless it is dead, or gone from a process that still runs.
  if channel ~= ARGV[5] and notify(channel, 'look ' .. ARGV[4]) ~= 0 then
    redis.call('LPUSH', KEYS[2], table.concat({channel, token, lease_ms, '{' .. record}, ' '))
    redis.call('PEXPIRE', KEYS[2], 10000) -- the caller may not wait, and then does not set it
  end
end

-- Put a waiter that has lost its position before the first who joined later. Returns whether
-- there is one, and this user may do that.
local function come_back(entry)
  local since = since_of(entry) or math.huge
  for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    if (since_of(other) or 0) > since then
      return type(redis.pcall('LINSERT', KEYS[2], 'BEFORE', other, entry)) == 'number'
    end
  end
end

-- Drop the waiters whose processes are gone. One process does this: that of the first waiter.
local function drop_gone(now)
  local gone = gone_for(GONE, KEYS[5], now)
  local first = redis.call('LRANGE', KEYS[2], 0, 0)[1]
  if string.match(first, '^%S*') == ARGV[5] or gone(first) then
    for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
      if gone(other) then
        redis.call('LREM', KEYS[2], 1, other)
      end
    end
  end
end

-- Join the queue, or stay in it; returns whether the caller was in it.
local function join(now)
  local entry = table.concat({ARGV[5], ARGV[1], ARGV[2], ARGV[3]}, ' ')
  local asked = tonumber(ARGV[6])
  local waits = redis.call('LPOS', KEYS[2], entry)
  if waits then
    note(ARGV[5], now)
    local forgotten = redis.pcall('ZRANGEBYSCORE', KEYS[5], '(0', now - FORGET, 'LIMIT', 0, 32)
    if #forgotten > 0 then
      redis.call('ZREM', KEYS[5], unpack(forgotten))
    end
    -- If the server did not answer for a while, or its clock was set, nobody was seen.
    if asked and math.abs(now - asked) <= 3000 then
      drop_gone(now)
    end
  else
    if not (asked and come_back(entry)) then
      redis.call('RPUSH', KEYS[2], entry)
    end
    note(ARGV[5], now)
  end
  local list = string.match(ARGV[5], '^@list:(.*)$')
  if list then
    redis.call('SET', list .. ':alive', '', 'PX', 5000)
  end
  -- Waiters poll several times within this time. A queue that no one polls for expires.
  redis.call('PEXPIRE', KEYS[2], math.max(10000, poll_time(ARGV[5]) or 0))
  return waits
end

local now = math.floor(moment / 1000)
redis.pcall('ZADD', KEYS[5], 'XX', now, ARGV[5]) -- a process that calls is not silent
local held = redis.call('GET', KEYS[1])
local holder, fence = string.match(held or '', '^(%S+) (%d+) ')
local due = held and tonumber(string.match(held, '^%S+ %d+ {"unclaimed":"(%d+) '))
local ttl, taken_back
if due and holder == ARGV[1] then
  ttl = claim(KEYS[1], held, now)
elseif due and due <= now then
  take_back(held, now)
  taken_back = true
end
if taken_back or not held or (ttl and ttl <= 0) then
  -- Free, or the holder's lease ran out, while others wait: the first of them goes first.
  if not hand_off(ARGV[4], ARGV[1], taken_back) then
    return give(ARGV[4], ARGV[1], lease, ARGV[3], moment)
  end
  held, ttl = redis.call('GET', KEYS[1]), nil
  holder, fence = string.match(held, '^(%S+) (%d+) ')
  due = tonumber(string.match(held, '^%S+ %d+ {"unclaimed":"(%d+) '))
end

if holder == ARGV[1] then
  if ttl then
    redis.call('ZADD', KEYS[3], now + ttl, ARGV[4])
  elseif ARGV[7] then
    redis.call('SET', KEYS[4], redis.call('GET', KEYS[4]) or fence)
  end
  return string.format('%s %.0f %.0f', fence, ttl or redis.call('PTTL', KEYS[1]), now)
end
local kind = holder and 0 or 3
if ARGV[5] ~= '' then
  kind = kind + (join(now) and 2 or 1)
end
-- What looks like a fence may be another program's number, of any length.
fence = string.sub(fence or '0', 1, 20)
ttl = due and due - now or redis.call('PTTL', KEYS[1])
return string.format('-%s %.0f %.0f %.0f', fence, ttl, now, kind)
