-- Vote for a caller, if the lock is free on this server or is to be taken over from its holder.
-- KEYS: see quorum_common.lua.
-- ARGV[1] to ARGV[4]: see acquire.lua, ARGV[5] '' or the caller's entry among the waiters, ARGV[6] the least
-- fence, ARGV[7] for how many ms a server does not vote after a restart, ARGV[8] '' or the digest of the
-- token from which to take the lock over, ARGV[9] the number of the attempt.
-- Returns "fence left now kind holder":
--   fence   the caller's, or 0 if it has no vote
--   left    ms: of the lease, -1 for one with no expiry; or until this server can learn the last fence
--   now     the server's clock in microseconds
--   kind    0: it votes, and the fence says for whom; 1: another program holds the lock; 2: no vote yet
--   holder  a number for the token that holds the lock, or the start of a server that does not vote yet
-- include quorum_common
local now = clock()
local function answer(fence, left, kind, token, start)
  local holder = start or tonumber(string.sub(redis.sha1hex(token), 1, 12), 16)
  return string.format('%.0f %.0f %.0f %.0f %.0f', fence, left, now, kind, holder)
end

local held, takes_over = redis.call('GET', KEYS[1]), ARGV[8] ~= ''
local hold = read_hold(held)
local token, fence = hold.token, hold.fence
-- A vote for an earlier attempt of the caller becomes one for this attempt, whose release it ignores.
local again = token == ARGV[1] and tonumber(hold.claim) < tonumber(ARGV[9])
local free = not held
if takes_over then
  free = held and digest_of(string.match(held, '^[^ ]*')) == ARGV[8]
end
if free or again or takes_over then
  local start, left = not_voting(math.floor(now / 1000), tonumber(ARGV[7]))
  if start then
    return answer(0, left, 2, '', start)
  end
  if free or again then
    if not held then
      -- All waiters poll again, so the queue is filled anew; that drops the dead ones.
      redis.call('DEL', KEYS[2], KEYS[6])
    end
    local lease, least = tonumber(ARGV[2]), math.max(now, tonumber(ARGV[6]))
    return answer(give(ARGV[4], ARGV[1], lease, ARGV[3], now, ARGV[9], least), lease, 0, ARGV[1])
  end
end

local left = redis.call('PTTL', KEYS[1])
if token == ARGV[1] then
  return answer(fence, left, 0, token)
end
if ARGV[5] ~= '' then
  redis.call('ZADD', KEYS[6], 'NX', now, ARGV[5])
  redis.call('ZADD', KEYS[2], 'NX', now, 'quorum')
  for _, key in ipairs({KEYS[2], KEYS[6]}) do
    redis.call('PEXPIRE', key, 60000) -- waiters poll several times within this time
  end
end
return answer(0, left, (token or not held) and 0 or 1, token or held or '')
