-- Forget a parked message that was published or withdrawn.
-- KEYS[1] the messages of a lock, KEYS[2] the outbox; see common.lua.
-- ARGV[1] its token, ARGV[2] the name of the lock. Returns 1.
redis.call('ZREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
