-- Set the leases of any number of locks, or look whether they are still held. Never creates one.
-- KEYS[1] the index, then two a lock: the lock, its waiters.
-- ARGV three a lock: name, token, and the new lease in ms: -1 for one without end, 0 to only look,
-- and with a plus sign before it where a longer one is to be left alone.
-- Returns for each lock its lease left in ms, -1 for one without end, -2 where the token does not
-- hold it.
local now = math.floor(clock() / 1000)
local left, line = {}, nil
-- With pcall: one lock, or the index, that another program has written over is no reason to let the
-- others go.
for i = 1, #ARGV / 3 do
  local lock, queue = KEYS[2 * i], KEYS[2 * i + 1]
  local name, token, lease = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local held = redis.pcall('GET', lock)
  if type(held) ~= 'string' or string.sub(held, 1, #token + 1) ~= token .. ' ' then
    left[i] = -2
  elseif unclaimed_until(held) and contended().claim(lock, held, now) <= 0 then
    left[i] = -2
  else
    local ttl = redis.call('PTTL', lock)
    if lease == 0 or (string.sub(ARGV[3 * i], 1, 1) == '+' and (ttl < 0 or ttl > lease)) then
      left[i] = ttl
    elseif lease > 0 then
      line = line or contended()
      line.tell_of_end(name, queue, ttl, lease)
      redis.call('PEXPIRE', lock, lease)
      redis.pcall('ZADD', KEYS[1], now + lease, name)
      left[i] = lease
    else
      redis.call('PEXPIRE', lock, 10000) -- so that something is written in any case, for replicas
      redis.call('PERSIST', lock)
      redis.pcall('ZADD', KEYS[1], '+inf', name)
      left[i] = -1
    end
  end
end
return left
