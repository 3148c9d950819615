-- Do for the parked messages of a lock what heartbeats do for other waiters: grant it if it is free.
-- KEYS[1] to KEYS[7]: see common.lua and permits.lua; KEYS[8] the locks that are waited for, KEYS[9] the
-- messages that wait for this one, KEYS[10] the outbox.
-- ARGV[1] name, ARGV[2] after how many ms to look again at the latest, unless so many locks are waited
-- for that all of them together would be looked at more than 200 times a second, ARGV[3] what stands for
-- the messages among the processes. Returns 1.
-- include leaving
local now, left = math.floor(clock() / 1000), look(ARGV[1])
-- A message that left the queue, as that was deleted, is published without the lock.
local tokens = key_of('tokens', ARGV[3], ARGV[1])
if redis.call('HLEN', KEYS[9]) > redis.call('HLEN', tokens) then
  for _, token in ipairs(redis.call('HKEYS', KEYS[9])) do
    local each = token .. ' ' .. ARGV[1]
    if redis.call('HEXISTS', tokens, digest_of(token)) == 0 and not redis.call('ZSCORE', KEYS[10], each) then
      redis.call('ZADD', KEYS[10], now, each)
    end
  end
end
if redis.call('EXISTS', tokens) == 0 then
  redis.call('ZREM', KEYS[8], ARGV[1])
  return 1
elseif not redis.call('ZSCORE', KEYS[2], ARGV[3]) then
  note_first(ARGV[1], ARGV[3])
end
redis.call('PERSIST', KEYS[2]) -- the messages of another outbox may have been the last of it
redis.call('ZADD', key_of('due'), 'NX', '+inf', ARGV[1])
redis.call('PERSIST', key_of('due'))
local most = math.max(ARGV[2], redis.call('ZCARD', KEYS[8]) * 5)
redis.call('ZADD', KEYS[8], now + math.min(left and left + 2 or most, most), ARGV[1])
return 1
