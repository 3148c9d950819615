-- Read who holds locks, without changing anything.
-- KEYS[1] when each waiting process was last seen, see common.lua, KEYS[2] the limits that operators
-- have set, then three for each lock: the lock, its waiters, its permits (see permits.lua).
-- ARGV[1] how many bytes of the key of a lock come before its name, ARGV[2] '' or 1 to count all
-- waiters alike, which takes less time for thousands.
-- Returns {now, ...}, the server's clock in ms and three for each lock: its value (nil if free or
-- another program's), its remaining lease in ms (-1 without end) and the number of waiters whose
-- process was seen lately (nil if this user may not know), or where parked messages wait among them,
-- {that number, how many these are}. The value of one that is shared is
-- {limit that was set or nil, {token, end of its lease, ...}, {token, rest of its value, ...}}.
-- include common

-- Another program's data under a key is no lock and no queue; any other error is returned.
local function is_foreign(answer)
  return string.find(answer.err, 'WRONGTYPE', 1, true) ~= nil
end

-- Return a record, of which readers cut more than 16,384 bytes.
local function cut(record)
  return string.sub(record, 1, 20000)
end

local now = math.floor(clock() / 1000)
local answer, gone = {now}, gone_for(3000, KEYS[1], now)
for i = 3, #KEYS, 3 do
  local held = redis.pcall('GET', KEYS[i])
  if type(held) == 'table' then
    if not is_foreign(held) then
      return held
    end
    local name = string.sub(KEYS[i], ARGV[1] + 1)
    local limit, rest = redis.pcall('HGET', KEYS[2], name), redis.pcall('HGETALL', KEYS[i + 2])
    held = redis.pcall('ZRANGEBYSCORE', KEYS[i], now, '+inf', 'WITHSCORES')
    for at = 2, #rest, 2 do
      rest[at] = cut(rest[at])
    end
    held = #held > 0 and {type(limit) == 'string' and limit, held, rest.err and {} or rest}
  elseif held then
    local token, record = string.match(held, '^(%S+ )(.*)$')
    held = token and token .. cut(record) or held
  end
  local waiters = redis.pcall('LLEN', KEYS[i + 1])
  answer[#answer + 1] = held
  answer[#answer + 1] = redis.call('PTTL', KEYS[i])
  if type(waiters) == 'table' then
    waiters = is_foreign(waiters) and 0
  elseif ARGV[2] == '' then
    local parked = 0
    for _, waiter in ipairs(redis.pcall('LRANGE', KEYS[i + 1], 0, -1)) do
      waiters = waiters - (gone(waiter) and 1 or 0)
      parked = parked + (parked_in(waiter) and 1 or 0)
    end
    waiters = parked > 0 and {waiters, parked} or waiters
  end
  answer[#answer + 1] = waiters
end
return answer
