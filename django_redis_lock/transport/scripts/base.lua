-- The value of a lock is "token fence claim record"; that of a permit has "-" in place of the token.
-- The claim is "-", or "due:lease:process" until the new holder has claimed the lock that it was handed
-- off: by when (ms of the server's clock) it has to, the lease (ms), and its process. In a quorum it is
-- the number of the attempt. A record is "limit fields", of which the fields are JSON.

local function write_hold(token, fence, claim, record)
  return token .. ' ' .. fence .. ' ' .. claim .. ' ' .. record
end

-- Return the fields of a value; none if there is none, or it is another program's.
local function read_hold(value)
  local hold, due, lease = {}, nil, nil
  if type(value) == 'string' then
    hold.token, hold.fence, hold.claim, hold.record = string.match(value, '^(%S+) (%d+) (%S+) (.*)$')
    due, lease, hold.process = string.match(hold.claim or '', '^(%d+):(%d+):(%S+)$')
    hold.due, hold.lease = tonumber(due), tonumber(lease)
  end
  return hold
end

-- Return the server's clock in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Return whether a token holds a lock, given the value of the lock, or false if it is free.
local function holds(token, held)
  return held and string.sub(held, 1, #token + 1) == token .. ' '
end

local function digest_of(token)
  return string.sub(redis.sha1hex(token), 1, 16)
end

-- Return the fence of a new hold, as text: `least`, by default the clock in microseconds, or one more
-- than the last fence if that is not smaller.
local function next_fence(now, least)
  local fence = string.format('%.0f', least or now)
  local last = redis.pcall('SET', KEYS[4], fence, 'GET')
  if not last or (#last == #fence and last < fence) then
    return fence
  elseif last.err then -- another program's data
    redis.call('SET', KEYS[4], fence)
  elseif #last >= #fence and #last < 19 and string.find(last, '^[1-9]%d*$') then
    redis.call('SET', KEYS[4], last)
    redis.call('INCR', KEYS[4]) -- exact, which numbers here are not from 2^53 up
    return redis.call('GET', KEYS[4])
  end
  return fence
end

-- Note in the index until when (ms) a lock is held.
local function note_end(name, ends, now)
  redis.call('ZADD', KEYS[3], ends, name)
  -- One in sixteen removes up to 32 locks that have expired: twice as many as are added.
  if now % 16 == 0 then
    local before = math.floor(now / 1000) - 1
    local expired = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', before, 'LIMIT', 0, 32)
    if #expired > 0 then
      redis.call('ZREM', KEYS[3], unpack(expired))
    end
  end
end

-- Write the lock for `token`, with a lease (ms) from `now` (microseconds); returns the fence.
local function give(name, token, lease, record, now, claim, least)
  local fence = next_fence(now, least)
  redis.call('SET', KEYS[1], write_hold(token, fence, claim or '-', record), 'PX', lease)
  note_end(name, math.floor(now / 1000) + lease, now)
  return fence
end

-- Return the answer to who got the lock: the fence alone, or "fence lease now" if it is no exact number.
local function granted(fence, lease, now)
  if #fence < 16 or (#fence == 16 and fence < '9') then
    return tonumber(fence)
  end
  return string.format('%s %.0f %.0f', fence, lease, math.floor(now / 1000))
end
