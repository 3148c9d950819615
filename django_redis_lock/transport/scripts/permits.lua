-- include base
-- A lock that several hold together. Each has a permit, known by the digest of its token:
-- KEYS[1] the permits, scored by the last ms of their leases, as the end of a key is,
-- KEYS[7] the value of each, see base.lua,
-- KEYS[6] the limits that operators have set, by name: "limit at by".
-- A record begins with the limit of who asks: a number for one of that many permits, "*" for one of any
-- number, "-" for the lock alone. A permit that was handed off and is not claimed yet ends when its
-- claim is due. Permits that have ended count for nothing; other calls remove some of them.

local function shares(record)
  return string.find(record, '^[%d*]') ~= nil
end

-- Return how many may have the lock together with who has this record; nil: it asks for it alone.
local function limit_of(name, record)
  local own = string.match(record, '^%d+')
  if own then
    local set = redis.pcall('HGET', KEYS[6], name)
    return tonumber(type(set) == 'string' and string.match(set, '^%d+') or own)
  end
  return shares(record) and math.huge or nil
end

-- Return in how many ms the first entry of a key is due, -1 if none is.
local function first_due(key, now)
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return first and first ~= 'inf' and math.max(first - now, 0) or -1
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

-- Return the fields of a permit, and what is left of it in ms (-1 with no expiry); nothing if there
-- is none, or it has ended at `now`, or its record was lost.
local function read_permit(lock, permits, id, now)
  local score, value = redis.pcall('ZSCORE', lock, id), redis.pcall('HGET', permits, id)
  local ends = type(score) == 'string' and tonumber(score) or now - 1
  if ends >= now and value then
    return read_hold(value), ends < math.huge and ends - now or -1
  elseif ends >= now and redis.call('ZREM', lock, id) == 1 and redis.call('EXISTS', lock) == 1 then
    expire_permits(lock, permits)
  end
end

-- Write a permit beside those of `holders`, as give writes a lock; the keys stay until `least` (ms).
local function give_permit(name, token, lease, record, now, holders, claim, least)
  local id, fence = digest_of(token), next_fence(now)
  local ends = math.floor(now / 1000) + lease
  redis.call('HSET', KEYS[7], id, write_hold('-', fence, claim or '-', record))
  redis.call('ZADD', KEYS[1], ends, id)
  note_end(name, expire_permits(KEYS[1], KEYS[7], least, holders == 0 and ends), now)
  return fence
end

-- Remove a permit; returns 0 if none is left. One not `claimed` may have kept the keys for longer.
local function remove_permit(name, id, claimed)
  local last = redis.call('ZRANGE', KEYS[1], -2, -1, 'WITHSCORES')
  if #last <= 2 and (last[1] or id) == id then
    redis.call('DEL', KEYS[1], KEYS[7])
    redis.call('ZREM', KEYS[3], name)
    return 0
  end
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[7], id)
  if last[3] == id or not claimed then
    redis.call('ZADD', KEYS[3], expire_permits(KEYS[1], KEYS[7]), name)
  end
  return 1
end
