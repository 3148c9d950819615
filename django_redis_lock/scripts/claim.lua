-- Claim a lock that was handed over to the caller, who was told of it.
-- KEYS[1] the lock.
-- ARGV[1] token.
-- Returns 1, or 0 where that token does not hold it any more.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then
  return 0
end
local line = contended()
if line.unclaimed(held) and line.claim(KEYS[1], held, math.floor(clock() / 1000)) <= 0 then
  return 0
end
return 1
