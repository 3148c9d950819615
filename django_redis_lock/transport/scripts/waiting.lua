-- Read the line of a lock, without changing anything.
-- KEYS[1] the waiters.
-- ARGV[1] the number of the last waiter to read, from 0 up, or -1 for all.
-- Returns {now, waiter, ...}, the longest waiting first; see common.lua. now is the server's clock
-- in ms.
local time = redis.call('TIME')
local answer = {time[1] * 1000 + math.floor(time[2] / 1000)}
local line = redis.pcall('LRANGE', KEYS[1], 0, ARGV[1])
-- What another program has put there is no line, and has no items; any other error is one.
if line.err and not string.find(line.err, 'WRONGTYPE', 1, true) then
  return line
end
for i, waiter in ipairs(line) do
  answer[i + 1] = waiter
end
return answer
