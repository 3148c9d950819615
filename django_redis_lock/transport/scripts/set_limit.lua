-- Set how many permits of a lock there are, or leave that to its callers, and grant what is free then.
-- KEYS: see common.lua and permits.lua.
-- ARGV[1] name, ARGV[2] the limit, or '' to leave it to the callers, ARGV[3] who sets it.
-- Returns 1.
-- include common
local now = math.floor(clock() / 1000)
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[6], ARGV[1])
else
  redis.call('HSET', KEYS[6], ARGV[1], string.format('%s %.0f %s', ARGV[2], now, ARGV[3]))
end
if type(redis.pcall('GET', KEYS[1])) ~= 'string' then
  
  leave(ARGV[1], '')
end
return 1
