-- Forget a parked message, which was published, or is withdrawn by who was to park it.
-- KEYS[1] the messages of a lock, KEYS[2] the outbox, KEYS[3] the waiters if it may be among them; see
-- common.lua. ARGV[1] its token, ARGV[2] the name of the lock. Returns 1.
for _, entry in ipairs(KEYS[3] and redis.call('LRANGE', KEYS[3], 0, -1) or {}) do
  if string.match(entry, '^@park:%S+ (%S+)') == ARGV[1] then
    redis.call('LREM', KEYS[3], 1, entry)
  end
end
redis.call('ZREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
