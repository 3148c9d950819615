-- Forget parked messages, which were published.
-- KEYS[1] the messages, KEYS[2] the outbox; see common.lua. ARGV their tokens. Returns 1.
redis.call('ZREM', KEYS[2], unpack(ARGV))
redis.call('HDEL', KEYS[1], unpack(ARGV))
return 1
