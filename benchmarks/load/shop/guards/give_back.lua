-- Give a reserved unit back.
-- KEYS[1]: the hash of reserve.lua
-- ARGV[1]: the reservation
-- Returns 1, or 0 if there is no such reservation any more; then nothing changes.
local removed = redis.call("HDEL", KEYS[1], ARGV[1])
if removed == 1 then
  redis.call("HINCRBY", KEYS[1], "free", 1)
end
return removed
