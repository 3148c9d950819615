-- Read who holds locks, without changing anything.
-- KEYS[1] when each waiting process was last seen, see common.lua, then two for each lock: the
-- lock, its waiters.
-- Returns {now, ...}, the server's clock in ms and three for each lock: its value (nil if free or not
-- a string), its remaining lease in ms (-1 without end) and the number of waiters whose process was
-- seen lately (nil if this user may not know).
-- include common

-- Another program's data under a key is no lock and no queue; any other error is returned.
local function is_foreign(answer)
  return string.find(answer.err, 'WRONGTYPE', 1, true) ~= nil
end

local now = math.floor(clock() / 1000)
local answer, gone = {now}, gone_for(3000, KEYS[1], now)
for i = 2, #KEYS, 2 do
  local held = redis.pcall('GET', KEYS[i])
  if type(held) == 'table' and not is_foreign(held) then
    return held
  end
  local waiters = redis.pcall('LLEN', KEYS[i + 1])
  answer[#answer + 1] = type(held) == 'string' and held
  answer[#answer + 1] = redis.call('PTTL', KEYS[i])
  if type(waiters) == 'table' then
    waiters = is_foreign(waiters) and 0
  else
    for _, waiter in ipairs(redis.pcall('LRANGE', KEYS[i + 1], 0, -1)) do
      waiters = waiters - (gone(waiter) and 1 or 0)
    end
  end
  answer[#answer + 1] = waiters
end
return answer
