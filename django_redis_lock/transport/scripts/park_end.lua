-- Forget parked messages, which were published, or are withdrawn by who was to park them.
-- KEYS[1] the messages, KEYS[2] the outbox, KEYS[3] the waiters if they may be among them; see
-- common.lua. ARGV their tokens. Returns 1.
for _, entry in ipairs(KEYS[3] and redis.call('LRANGE', KEYS[3], 0, -1) or {}) do
  if string.match(entry, '^@park:%S+ (%S+)') == ARGV[1] then
    redis.call('LREM', KEYS[3], 1, entry)
  end
end
redis.call('ZREM', KEYS[2], unpack(ARGV))
redis.call('HDEL', KEYS[1], unpack(ARGV))
return 1
