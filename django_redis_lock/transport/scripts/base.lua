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

-- Count a hold of the lock, and return its fence as a number and as text: `least`, by default the
-- clock in microseconds, or one more than the last fence if that is not smaller.
local function next_fence(now, least)
  local fence = least or now
  local written = string.format('%.0f', fence)
  local last = tonumber(redis.call('SET', KEYS[4], written, 'GET') or '')
  -- Numbers from 2^53 up are not exact; no script has written one.
  if last and last >= fence and last < 9007199254740992 then
    fence = last + 1
    written = string.format('%.0f', fence)
    redis.call('SET', KEYS[4], written)
  end
  return fence, written
end

-- Note in the index until when (ms) a lock is held.
local function note_end(name, ends, fence, now)
  redis.call('ZADD', KEYS[3], ends, name)
  -- One in sixteen removes up to 32 locks that have expired from the index. That is twice as many as
  -- are added, so the index stays as small as the number of held locks, and no call pays for more.
  if fence % 16 == 0 then
    local before = math.floor(now / 1000) - 1
    local expired = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', before, 'LIMIT', 0, 32)
    if #expired > 0 then
      redis.call('ZREM', KEYS[3], unpack(expired))
    end
  end
end

-- Write the lock for `token`, with a lease (ms) from `now` (microseconds); returns the fence.
local function give(name, token, lease, record, now, least)
  local fence, written = next_fence(now, least)
  redis.call('SET', KEYS[1], token .. ' ' .. written .. ' ' .. record, 'PX', lease)
  note_end(name, math.floor(now / 1000) + lease, fence, now)
  return fence
end
