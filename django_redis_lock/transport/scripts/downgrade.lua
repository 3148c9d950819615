-- Let the one who has the lock alone share it from now on, without it being free in between.
-- KEYS: see common.lua and permits.lua.
-- ARGV[1] token, ARGV[2] name, ARGV[3] the record from now on.
-- Returns the remaining lease in ms, -1 for one without end, -2 if the token does not hold the lock.
-- include common
local now = math.floor(clock() / 1000)
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then -- an earlier sending may have been carried out
  local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
  return score and (score == 'inf' or tonumber(score) > now) and left_of(score, now) or -2
elseif not holds(ARGV[1], held) then
  return -2
end
local left = redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[7], ARGV[1], string.match(held, '^%S+ (%d+ )') .. ARGV[3])
redis.call('ZADD', KEYS[1], left < 0 and '+inf' or now + left, ARGV[1])
expire_permits(KEYS[1], KEYS[7])
hand_off(ARGV[2], '', false, 1)
return left
