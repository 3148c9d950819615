-- Set the leases of any number of locks, or check whether they are still held. Never creates one.
-- KEYS[1] the index, then two for each lock: the lock, its waiters.
-- ARGV three for each lock: name, token, and the new lease in ms: -1 for one without end, 0 to only
-- check; with a plus sign before it a longer lease is left alone.
-- Returns for each lock its remaining lease in ms, -1 for one without end, -2 if the token does not
-- hold it.
-- include common
local now, left = math.floor(clock() / 1000), {}
-- With pcall: one lock, or the index, that another program has overwritten is no reason to lose the
-- others.
for i = 1, #ARGV / 3 do
  local lock, waiters = KEYS[2 * i], KEYS[2 * i + 1]
  local name, token, lease = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local held = redis.pcall('GET', lock)
  if type(held) ~= 'string' or not holds(token, held) or (claim(lock, held, now) or 1) <= 0 then
    left[i] = -2
  else
    local ttl = redis.call('PTTL', lock)
    left[i] = lease
    if lease == 0 or (string.sub(ARGV[3 * i], 1, 1) == '+' and (ttl < 0 or ttl > lease)) then
      left[i] = ttl
    elseif lease > 0 then
      notify_of_end(name, waiters, ttl, lease)
      redis.call('PEXPIRE', lock, lease)
      redis.pcall('ZADD', KEYS[1], now + lease, name)
    else
      redis.call('PEXPIRE', lock, 10000) -- so that there is always a write for replicas to receive
      redis.call('PERSIST', lock)
      redis.pcall('ZADD', KEYS[1], '+inf', name)
    end
  end
end
return left
