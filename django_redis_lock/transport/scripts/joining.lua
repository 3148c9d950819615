-- include common
-- What acquire.lua and acquire_shared.lua do if the lock is held or waited for.

-- Put a waiter that has lost its position before those who joined later; returns whether it could.
local function come_back(entry)
  local since = since_of(entry) or math.huge
  for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    if (since_of(other) or 0) > since then
      return type(redis.pcall('LINSERT', KEYS[2], 'BEFORE', other, entry)) == 'number'
    end
  end
end

-- Return how many wait without those whose processes are gone, whom the process of the first waiter
-- drops. Unless it is gone itself, nobody else looks for them.
local function count_waiters(now, drop)
  local gone, left = gone_for(GONE, KEYS[5], now), redis.call('LLEN', KEYS[2])
  local first = redis.call('LRANGE', KEYS[2], 0, 0)[1] or ''
  if gone(first) or parked_in(first) or (drop and string.match(first, '^%S*') == ARGV[5]) then
    for _, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
      if gone(other) then
        left = left - (drop and redis.call('LREM', KEYS[2], 1, other) or 1)
      end
    end
  end
  return left
end

-- Return whether as many wait as the caller accepts.
local function is_full(now)
  local most = tonumber(ARGV[7] or '')
  return most and redis.call('LLEN', KEYS[2]) >= most and count_waiters(now) >= most
end

-- Park a message in `key`; returns the same as join. If the start of a token is given as ARGV[10], it
-- takes the place of the message that has this token, which then is to be published.
local function park(now, key)
  local since, place, older = now, nil, nil
  local function entry()
    local record = string.format('%s,"since":%.0f}', string.sub(ARGV[3], 1, -2), since)
    return table.concat({ARGV[5], ARGV[1], ARGV[2], record}, ' ')
  end
  local prefix = ARGV[5] .. ' ' .. (ARGV[10] or '')
  for i, other in ipairs(ARGV[10] and redis.call('LRANGE', KEYS[2], 0, -1) or {}) do
    if string.sub(other, 1, #prefix) == prefix then
      place, since, older = i, since_of(other) or now, string.match(other, '^%S+ (%S+)')
      break
    end
  end
  if not place and is_full(now) then
    return 0
  end
  -- In a cluster that is moving the slot, what fails is a missing key, so the queue comes last.
  redis.call('ZADD', key .. ':locks', now, ARGV[4])
  if place then
    redis.call('ZADD', key .. ':outbox', 0, older .. ' ' .. ARGV[4])
  end
  redis.call('HSET', key .. '::' .. ARGV[4], ARGV[1], ARGV[9])
  if place then
    redis.call('LSET', KEYS[2], place - 1, entry())
  else
    redis.call('RPUSH', KEYS[2], entry())
  end
  redis.call('PERSIST', KEYS[2])
  return 1
end

-- Join the queue, or stay in it; returns 2 if the caller was in it, 1 if it is now, 0 if it is full.
local function join(now)
  local key = parked_in(ARGV[5])
  if key then
    return park(now, key)
  end
  local endless = redis.call('PTTL', KEYS[2]) == -1
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
      count_waiters(now, true)
    end
  else
    if not asked and is_full(now) then
      return 0
    elseif not (asked and come_back(entry)) then
      redis.call('RPUSH', KEYS[2], entry)
    end
    note(ARGV[5], now)
  end
  local list = string.match(ARGV[5], '^@list:(.*)$')
  if list then
    redis.call('SET', list .. ':alive', '', 'PX', 5000)
  end
  -- Waiters poll several times within this time. A queue that no one polls for expires.
  if not endless then
    redis.call('PEXPIRE', KEYS[2], math.max(QUEUED, poll_time(ARGV[5]) or 0))
  end
  return waits and 2 or 1
end

local now = math.floor(moment / 1000)
-- Read the hold that counts for the caller: of who has the lock alone, or the caller's own permit.
local held, holder, fence, due, left, _
local function read(shared)
  held = not shared and redis.pcall('GET', KEYS[1])
  if shared then
    held, left = read_permit(KEYS[1], KEYS[7], ARGV[1], now)
  end
  local value = type(held) == 'string' and held or ''
  holder, fence = string.match(value, '^(%S+) (%d+) ')
  due = tonumber(string.match(value, '^%S+ %d+ {"unclaimed":"(%d+) '))
  return type(held) == 'table'
end

redis.pcall('ZADD', KEYS[5], 'XX', now, ARGV[5]) -- a process that calls is not silent
local holders, taken_back, waiting, ttl = 0, false, nil, nil
local shared = read(false)
if shared then
  -- include leaving
  holders, taken_back = purge(ARGV[4], ARGV[5], now) -- an error if another program has written it
  read(true)
end
if due and holder == ARGV[1] then
  ttl = claim(KEYS[1], held, now, shared and KEYS[7], KEYS[3], ARGV[4])
elseif due and due <= now then
  -- include leaving
  take_back(ARGV[4], held, ARGV[5], now)
  held, taken_back = nil, true
end
if not held or (ttl and ttl <= 0) then
  -- include handing
  -- Free, or the holder's lease ran out, or others share it. Those who wait go first.
  holders, waiting = hand_off(ARGV[4], ARGV[1], taken_back, holders)
  if not waiting and holders < (limit_of(ARGV[4], ARGV[3]) or 1)
      and (holders == 0 or not redis.call('ZSCORE', KEYS[1], ARGV[1])) then
    return grant(ARGV[4], ARGV[1], lease, ARGV[3], moment, holders)
  elseif holders == 0 then
    redis.call('DEL', KEYS[1])
  end
  shared, ttl = holders < math.huge, nil
  read(shared)
elseif shared then
  -- include handing
  hand_off(ARGV[4], '', taken_back, holders) -- for those that have ended
end

local key = parked_in(ARGV[5])
if holder == ARGV[1] then
  if ttl and not shared then
    redis.call('ZADD', KEYS[3], now + ttl, ARGV[4])
  elseif ARGV[8] == '1' or ARGV[8] == 'final' then
    redis.call('SET', KEYS[4], redis.call('GET', KEYS[4]) or fence)
  end
  ttl = ttl or shared and left or redis.call('PTTL', KEYS[1])
  return string.format('%s %.0f %.0f', fence, ttl, now)
end
local kind = (shared or holder) and 0 or 3
if shared then -- no fence that was given until now is greater
  fence = redis.call('GET', KEYS[4])
  _, ttl = read_permit(KEYS[1], KEYS[7], redis.call('ZRANGE', KEYS[1], 0, 0)[1] or '', now)
end
if ARGV[5] ~= '' then
  kind = kind + join(now)
  local stays = redis.call('PTTL', KEYS[2])
  local ends = stays == -1 and '+inf' or now + stays
  if kind % 3 > 0 and redis.pcall('ZADD', KEYS[8], ends, ARGV[4]) == 1 then -- a new name
    local expired = redis.pcall('ZRANGEBYSCORE', KEYS[8], '-inf', '(' .. now, 'LIMIT', 0, 32)
    redis.pcall('ZREM', KEYS[8], '', unpack(expired)) -- no name is empty
  end
  local endless = redis.pcall('ZRANGE', KEYS[8], -1, -1, 'WITHSCORES')[2] == 'inf'
  redis.pcall(unpack(endless and {'PERSIST', KEYS[8]} or {'PEXPIRE', KEYS[8], 2 * FORGET}))
  if key and kind % 3 > 0 then
    return string.format('0 -1 %.0f %.0f', now, kind)
  end
end
-- What looks like a fence may be another program's number, of any length.
fence = string.sub(fence or '0', 1, 20)
if ARGV[8] == 'final' then -- so that the refusal waits for replicas
  redis.pcall('SET', KEYS[4], redis.call('GET', KEYS[4]) or '0')
end
ttl = ttl or due and due - now or redis.call('PTTL', KEYS[1])
return string.format('-%s %.0f %.0f %.0f', fence, ttl, now, kind)
