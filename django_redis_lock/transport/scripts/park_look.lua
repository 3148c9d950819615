-- Do for the parked messages of a lock what other waiters do when they poll: grant it if it is free.
-- KEYS[1] to KEYS[7]: see common.lua and permits.lua; KEYS[8] the locks that are waited for, KEYS[9] the
-- messages that wait for this one, KEYS[10] the outbox, KEYS[11] the names of the queues.
-- ARGV[1] name, ARGV[2] after how many ms to look again at the latest, unless so many locks are waited
-- for that all of them together would be looked at more than 200 times a second. Returns 1.
-- include leaving
local now = math.floor(clock() / 1000)
local held = redis.pcall('GET', KEYS[1])
local due = type(held) == 'string' and tonumber(string.match(held, '^%S+ %d+ {"unclaimed":"(%d+) '))
if due and due <= now then
  take_back(ARGV[1], held, '', now)
  if hand_off(ARGV[1], '', true, 0) == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[3], ARGV[1])
  end
else
  leave(ARGV[1], '')
end
-- A message that left the queue is published without the lock: a version of this package that does
-- not know parked messages has taken its waiter for dead, or the queue was deleted.
if redis.call('HLEN', KEYS[9]) > redis.call('LLEN', KEYS[2]) then
  local waits = {}
  for _, entry in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    waits[string.match(entry, '^@park:%S+ (%S+)') or ''] = true
  end
  for _, token in ipairs(redis.call('HKEYS', KEYS[9])) do
    local each = token .. ' ' .. ARGV[1]
    if not waits[token] and not redis.call('ZSCORE', KEYS[10], each) then
      redis.call('ZADD', KEYS[10], now, each)
    end
  end
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('ZREM', KEYS[8], ARGV[1])
  redis.pcall('ZREM', KEYS[11], ARGV[1])
  return 1
end
local first = redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES') -- the permit that ends first
local left = first[2] and first[2] - now or redis.call('PTTL', KEYS[1])
if due and due > now then
  left = due - now
end
local most = math.max(ARGV[2], redis.call('ZCARD', KEYS[8]) * 5)
left = left < 0 and most or math.min(left + 2, most)
redis.call('ZADD', KEYS[8], now + left, ARGV[1])
return 1
