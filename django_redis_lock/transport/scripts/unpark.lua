-- Let parked messages leave the queue of a lock without it; they are to be published.
-- KEYS[1] the waiters, KEYS[2] the outbox; see common.lua.
-- ARGV[1] how their entries begin, ARGV[2] the name of the lock. Returns how many there are.
local found, prefix = 0, ARGV[1]
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if string.sub(entry, 1, #prefix) == prefix then
    redis.call('LREM', KEYS[1], 1, entry)
    local token = string.match(entry, '^%S+ (%S+)')
    redis.call('ZADD', KEYS[2], found, token .. ' ' .. ARGV[2]) -- due, in this order
    found = found + 1
  end
end
return found
