-- Set the leases of any number of locks, or check whether they are still held. Never creates one.
-- KEYS[1] the index, KEYS[2] when processes were seen (see common.lua), then for each lock: the lock, its
-- waiters, its permits (see permits.lua). ARGV for each lock: name, token, and the new lease in ms: -1 for
-- one with no expiry, 0 to only check; with a plus sign before it a longer lease is left alone.
-- Returns what each lease has left in ms, -1 for one with no expiry, -2 if the token does not hold it.
local seen_key = KEYS[2]
-- include common
local now, left = math.floor(clock() / 1000), {}
-- With pcall: one lock, or the index, that another program has overwritten does not lose the others.
for i = 1, #ARGV / 3 do
  local lock, waiters, permits = KEYS[3 * i], KEYS[3 * i + 1], KEYS[3 * i + 2]
  local name, token, lease = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
  local held, id, ttl = redis.pcall('GET', lock), token, nil
  local shared = type(held) == 'table'
  if shared then
    id = digest_of(token)
    held, ttl = read_permit(lock, permits, id, now)
    ttl = held and claim(lock, id, held, now, permits, KEYS[1], name) or ttl
  elseif holds(token, held) and (claim(lock, id, read_hold(held), now) or 1) > 0 then
    ttl = redis.call('PTTL', lock)
  end
  left[i] = ttl and lease or -2
  if ttl and (lease == 0 or (string.sub(ARGV[3 * i], 1, 1) == '+' and (ttl < 0 or ttl > lease))) then
    left[i] = ttl
  elseif ttl then
    local last = lease < 0 and '+inf' or now + lease
    if lease > 0 then
      note_sooner(name, waiters, ttl, lease, now)
    end
    if shared then
      redis.call('PERSIST', permits) -- for a server that is out of memory, see common.lua
      redis.call('ZADD', lock, last, id)
      last = expire_permits(lock, permits)
    elseif lease > 0 then
      redis.call('PEXPIRE', lock, lease)
    else
      redis.call('PEXPIRE', lock, 10000) -- so that there is always a write for replicas to receive
      redis.call('PERSIST', lock)
    end
    redis.pcall('ZADD', KEYS[1], last, name)
  end
end
return left
