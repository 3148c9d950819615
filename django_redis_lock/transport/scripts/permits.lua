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

-- Let the permits expire with the last of them, but not before `least` (ms). Returns the end of the
-- last, as the index has it.
local function expire_permits(lock, permits, least)
  local last = redis.call('ZRANGE', lock, -1, -1, 'WITHSCORES')[2]
  if last == 'inf' then
    redis.call('PERSIST', lock)
    redis.call('PERSIST', permits)
  else
    -- One more ms: a key whose end is now is deleted at once, and the last permit is still held.
    local ends = string.format('%.0f', math.max(tonumber(last) + 1, least or 0))
    redis.call('PEXPIREAT', lock, ends)
    redis.call('PEXPIREAT', permits, ends)
  end
  return last
end

-- Write a permit for `token`, as give writes a lock. The keys stay until `least` (ms), if given.
local function give_permit(name, token, lease, record, now, least)
  local fence, written = next_fence(now)
  redis.call('HSET', KEYS[7], token, written .. ' ' .. record)
  redis.call('ZADD', KEYS[1], math.floor(now / 1000) + lease, token)
  note_end(name, expire_permits(KEYS[1], KEYS[7], least), fence, now)
  return fence
end

-- Give the lock to one who may have it together with its `holders`; returns the fence. If it must be
-- claimed within `due` ms, the record gets a mark, and the keys outlive that time, so that a caller
-- who polls then sees whose turn it was.
local function grant(name, token, lease, record, now, holders, mark, due)
  local marked = mark and mark .. string.sub(record, 2) or record
  if not string.find(record, '^{"limit":') then
    return give(name, token, due and math.max(lease, due + 2000) or lease, marked, now)
  elseif holders == 0 then
    redis.call('DEL', KEYS[1]) -- a former holder had it alone
  end
  local least = due and math.floor(now / 1000) + due + 2000
  return give_permit(name, token, due or lease, marked, now, least)
end

-- Remove a permit; returns how many are left.
local function remove_permit(token)
  local left = redis.call('ZCARD', KEYS[1]) - redis.call('ZREM', KEYS[1], token)
  if left == 0 then
    redis.call('DEL', KEYS[7])
    return 0
  end
  redis.call('HDEL', KEYS[7], token)
  if redis.call('PTTL', KEYS[1]) < 0 then -- it may have been the only one without end
    expire_permits(KEYS[1], KEYS[7])
  end
  return left
end

-- Return how many ms a score is ahead, -1 if it is infinite or missing.
local function left_of(score, now)
  return score and score ~= 'inf' and score - now or -1
end

-- Return the token of the permit that is held by this token or has this digest.
local function permit_of(token, digest)
  local now = math.floor(clock() / 1000)
  for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')) do
    if each == token or is_held_by_digest(digest, each) then
      return each
    end
  end
end
