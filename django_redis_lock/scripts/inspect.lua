-- Read who holds locks, without changing anything.
-- KEYS two a lock: the lock, its waiters.
-- Returns {now, ...} with three a lock: its value (nil when free or not a string),
-- its lease left in ms (-1 without end) and the number of waiters. now is the server's clock in ms.
local time = redis.call('TIME')
local answer = {time[1] * 1000 + math.floor(time[2] / 1000)}
for i = 1, #KEYS, 2 do
  local held = redis.pcall('GET', KEYS[i])
  local waiters = redis.pcall('LLEN', KEYS[i + 1])
  answer[#answer + 1] = type(held) == 'string' and held
  answer[#answer + 1] = redis.call('PTTL', KEYS[i])
  answer[#answer + 1] = type(waiters) == 'number' and waiters or 0
end
return answer
