-- Included by most scripts.

-- Return the server's clock in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Return whether a token holds a lock, given the value of the lock, or false if it is free.
local function holds(token, held)
  return held and string.sub(held, 1, #token + 1) == token .. ' '
end

-- Return whether the token with a digest holds it.
local function is_held_by_digest(digest, held)
  return held and string.sub(redis.sha1hex(string.match(held, '^[^ ]*')), 1, 16) == digest
end

-- Remove up to 32 locks that have expired by `now` (microseconds) from the index. One acquisition
-- in sixteen, chosen by the clock, does this: that removes twice as many as are added, so the index
-- stays as small as the number of held locks, and no call ever pays for more.
local function prune(index, now)
  local expired = redis.call(
    'ZRANGEBYSCORE', index, '-inf', math.floor(now / 1000) - 1, 'LIMIT', 0, 32)
  if #expired > 0 then
    redis.call('ZREM', index, unpack(expired))
  end
end

-- Write the lock for `token` with a lease of `lease` ms from `now` (microseconds). Returns the
-- fence: the clock, or one more than the last fence if the clock has not passed that.
local function give(name, token, lease, record, now)
  local fence, written = now, string.format('%.0f', now)
  local last = tonumber(redis.call('SET', KEYS[4], written, 'GET') or '')
  -- Numbers from 2^53 up are not exact; no script has written one.
  if last and last >= now and last < 9007199254740992 then
    fence = last + 1
    written = string.format('%.0f', fence)
    redis.call('SET', KEYS[4], written)
  end
  redis.call('SET', KEYS[1], token .. ' ' .. written .. ' ' .. record, 'PX', lease)
  redis.call('ZADD', KEYS[3], math.floor(now / 1000) + lease, name)
  return fence
end
