-- Read the line of a lock, without changing anything.
-- KEYS[1] the waiters.
-- Returns {now, waiter, ...}, the longest waiting first; see common.lua. now is the server's clock
-- in ms.
local time = redis.call('TIME')
local answer = {time[1] * 1000 + math.floor(time[2] / 1000)}
-- What is no list is an error, which has no items.
for i, waiter in ipairs(redis.pcall('LRANGE', KEYS[1], 0, -1)) do
  answer[i + 1] = waiter
end
return answer
