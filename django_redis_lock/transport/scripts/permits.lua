-- include base
-- A lock that several hold together. Each has a permit:
-- KEYS[1] their tokens, scored by the last ms of their leases, as the end of a key is,
-- KEYS[7] the rest of each value by token: "fence record",
-- KEYS[6] the limits that operators have set, by name: "limit at by".
-- A record that begins with {"limit":N asks for one of N permits, and with {"limit":null for one of
-- any number; every other asks for the lock alone. A permit that was handed off and is not claimed
-- yet ends when its claim is due.

-- Return how many may have the lock together with who has this record; nil: it asks for it alone.
local function limit_of(name, record)
  local own = string.match(record, '^{"limit":(%w+)')
  if own == 'null' then
    return math.huge
  elseif own then
    local set = redis.pcall('HGET', KEYS[6], name)
    return tonumber(type(set) == 'string' and string.match(set, '^%d+') or own)
  end
end

-- Let the permits expire with the last (at `last`), but not before `least`, both ms; returns when.
local function expire_permits(lock, permits, least, last)
  last = math.max(last or redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2], least or 0)
  if last == math.huge then
    redis.call('PERSIST', lock)
    redis.call('PERSIST', permits)
    return '+inf'
  end
  redis.call('PEXPIREAT', lock, last + 1) -- a key that ends now is deleted at once
  redis.call('PEXPIREAT', permits, last + 1)
  return last
end

-- Return the permit of a token as the value of a lock, and what is left of it in ms (-1 without end);
-- nothing if there is none, or it has ended at `now`, or its record was lost.
local function read_permit(lock, permits, token, now)
  local score, rest = redis.pcall('ZSCORE', lock, token), redis.pcall('HGET', permits, token)
  local ends = type(score) == 'string' and tonumber(score) or now - 1
  if ends >= now and rest then
    rest = type(rest) == 'string' and rest or ''
    return token .. ' ' .. rest, ends < math.huge and ends - now or -1
  elseif ends >= now and redis.call('ZREM', lock, token) == 1 and redis.call('EXISTS', lock) == 1 then
    expire_permits(lock, permits)
  end
end

-- Write a permit beside those of `holders`, as give writes a lock; the keys stay until `least` (ms).
local function give_permit(name, token, lease, record, now, holders, least)
  local fence, written = next_fence(now)
  local ends = math.floor(now / 1000) + lease
  redis.call('HSET', KEYS[7], token, written .. ' ' .. record)
  redis.call('ZADD', KEYS[1], ends, token)
  note_end(name, expire_permits(KEYS[1], KEYS[7], least, holders == 0 and ends), fence, now)
  return fence
end

-- Remove a permit; returns 0 if none is left. One not `claimed` may have kept the keys for longer.
local function remove_permit(name, token, claimed)
  local last = redis.call('ZRANGE', KEYS[1], -2, -1, 'WITHSCORES')
  if #last <= 2 and (last[1] or token) == token then
    redis.call('DEL', KEYS[1], KEYS[7])
    redis.call('ZREM', KEYS[3], name)
    return 0
  end
  redis.call('ZREM', KEYS[1], token)
  redis.call('HDEL', KEYS[7], token)
  if last[3] == token or not claimed then
    redis.call('ZADD', KEYS[3], expire_permits(KEYS[1], KEYS[7]), name)
  end
  return 1
end
