-- Read the queue of a lock, without changing anything.
-- KEYS[1] the waiters.
-- ARGV[1] the number of the last waiter to read, from 0 up, or -1 for all.
-- Returns {now, waiter, ...}, the longest waiting first; see common.lua. now is the server's clock
-- in ms.
local answer = {math.floor(clock() / 1000)}
local queue = redis.pcall('LRANGE', KEYS[1], 0, ARGV[1])
-- Another program's data under this key is no queue, and has no items; any other error is returned.
if queue.err and not string.find(queue.err, 'WRONGTYPE', 1, true) then
  return queue
end
for i, waiter in ipairs(queue) do
  answer[i + 1] = waiter
end
return answer
