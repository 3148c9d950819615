-- Set how many permits a lock has, or leave that to its callers, and grant those that are free then.
-- KEYS: see common.lua and permits.lua.
-- ARGV[1] name, ARGV[2] the limit, or '' to leave it to the callers, ARGV[3] who sets it. Returns 1.
-- include leaving
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[6], ARGV[1])
else
  redis.call('HSET', KEYS[6], ARGV[1], string.format('%s %.0f ', ARGV[2], clock() / 1000) .. ARGV[3])
end
leave(ARGV[1], '')
return 1
