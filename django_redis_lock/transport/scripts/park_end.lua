-- Forget a parked message that was published or withdrawn.
-- KEYS: see common.lua; then those of the outbox: KEYS[8] the messages of the lock, KEYS[9] those to be
-- published, KEYS[10] those that could not be, KEYS[11] the locks, KEYS[12] the limits in this one.
-- ARGV[1] its token, ARGV[2] the name of the lock, ARGV[3] "@" and the id of the outbox, ARGV[4] its turn,
-- or '' if it was published. Returns 1.
redis.call('ZREM', KEYS[9], ARGV[1] .. ' ' .. ARGV[2])
redis.call('HDEL', KEYS[8], ARGV[1])
redis.call('HDEL', KEYS[10], ARGV[1])
if ARGV[4] ~= '' then
  local seen_key = KEYS[5]
  -- include parked
  leave_backlog(ARGV[2], ARGV[3], ARGV[4], ARGV[1])
end
if redis.call('EXISTS', KEYS[8]) == 0 then
  redis.call('ZREM', KEYS[11], ARGV[2])
  redis.call('DEL', KEYS[12])
end
return 1
