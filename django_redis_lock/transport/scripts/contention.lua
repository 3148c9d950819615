-- Read what is counted of a group of locks.
-- KEYS[1] its hash; see count.lua.
-- Returns the server's clock in milliseconds, then for each slot its number and its counts.
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, math.floor(clock() / 1000))
return answer
