-- Let parked messages leave the queue of a lock without it; they are to be published.
-- KEYS[1] the waiters, KEYS[2] the messages, KEYS[3] the outbox; see common.lua.
-- ARGV[1] what the tokens of the messages begin with. Returns how many there are.
local found, prefix = 0, '@park:' .. KEYS[2] .. ' ' .. ARGV[1]
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if string.sub(entry, 1, #prefix) == prefix then
    redis.call('LREM', KEYS[1], 1, entry)
    redis.call('ZADD', KEYS[3], found, string.match(entry, '^%S+ (%S+)'))
    found = found + 1
  end
end
return found
