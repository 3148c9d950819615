-- Read who holds locks, without changing anything.
-- KEYS[1] when processes were seen, see common.lua, KEYS[2] the limits that operators have set, then
-- three for each lock: the lock, its waiters, its permits (see permits.lua).
-- ARGV[1] how many bytes of the key of a lock come before its name, ARGV[2] how many permits of each
-- lock to pass over.
-- Returns {now, ...}, the server's clock in ms and three for each lock: its value (nil if free or
-- another program's), its remaining lease in ms (-1 with no expiry) and the number of waiters whose
-- process was seen lately (nil if this user may not know), or where parked messages wait among them,
-- {that number, how many these are}. The value of one that is shared is
-- {limit that was set or nil, how many hold it, {digest, end of its lease, ...}, {rest of its value,
-- ...}}, with as many holders as one script may read.
local seen_key = KEYS[1]
-- include common

-- Return a record, of which readers cut more than 16,384 bytes.
local function cut(record)
  return record and string.sub(record, 1, 20000)
end

local now, budget = math.floor(clock() / 1000), 8 * BATCH
local answer = {now}
last_seen = now -- the only process that waits may have died

-- Return the holders that share a lock, false if none does.
local function read_permits(lock, permits, name)
  local limit, number = redis.pcall('HGET', KEYS[2], name), redis.pcall('ZCOUNT', lock, now, '+inf')
  if type(number) ~= 'number' or number == 0 then
    return false
  end
  local ids, ends = {}, budget > 0
    and redis.call('ZRANGEBYSCORE', lock, now, '+inf', 'WITHSCORES', 'LIMIT', ARGV[2], budget) or {}
  for i = 1, #ends, 2 do
    ids[#ids + 1] = ends[i]
  end
  budget = budget - #ids
  local rests = #ids > 0 and redis.pcall('HMGET', permits, unpack(ids)) or {}
  for i = 1, #rests do
    rests[i] = cut(rests[i])
  end
  return {type(limit) == 'string' and limit, number, ends, rests.err and {} or rests}
end

for i = 3, #KEYS, 3 do
  local held, name = redis.pcall('GET', KEYS[i]), string.sub(KEYS[i], ARGV[1] + 1)
  if type(held) == 'table' then
    if not is_other(held) then -- else another program wrote it
      return held
    end
    held = read_permits(KEYS[i], KEYS[i + 2], name)
  elseif held then
    local token, record = string.match(held, '^(%S+ )(.*)$')
    held = token and token .. cut(record) or held
  end
  local waiters = redis.pcall('ZCARD', KEYS[i + 1])
  answer[#answer + 1] = held
  answer[#answer + 1] = redis.call('PTTL', KEYS[i])
  if type(waiters) == 'table' then
    waiters = is_other(waiters) and 0
  elseif waiters > 0 then
    local parked
    waiters, parked = count_waiters(KEYS[i + 1], name, SHOWN)
    waiters = parked > 0 and {waiters, parked} or waiters
  end
  answer[#answer + 1] = waiters
end
return answer
