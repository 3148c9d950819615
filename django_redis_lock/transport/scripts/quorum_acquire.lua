-- Vote for a caller, if nobody holds the lock on this server.
-- KEYS: see quorum_common.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, which ends with the number of the
-- attempt as ',"try":N}', ARGV[4] name, ARGV[5] '' or the caller's entry among the waiters,
-- ARGV[6] the least fence, ARGV[7] for how many ms a server that was started anew does not vote.
-- Returns "fence left now kind holder":
--   fence   the caller's, or 0 where it has no vote
--   left    ms: of the caller's lease or of the holder's, -1 for one without end; or until this
--           server can learn the last fence
--   now     the server's clock in microseconds
--   kind    0: the fence says it, or another holds the lock; 1: a foreign program does; 2: this
--           server does not vote yet
--   holder  a number that stands for the token that holds the lock, or for the start of a server
--           that does not vote yet
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function answer(fence, left, kind, token, start)
  local holder = start or tonumber(string.sub(redis.sha1hex(token), 1, 12), 16)
  return string.format('%s %.0f %.0f %.0f %.0f', fence, left, now, kind, holder)
end
local function attempt(record)
  return tonumber(string.match(record, ',"try":(%d+)}$') or 0)
end

local held = redis.call('GET', KEYS[1])
local token, fence = string.match(held or '', '^(%S+) (%d+) ')
-- What an earlier attempt of the caller left becomes this one's, with a fence and a lease of its
-- own; taking the earlier one back does not hit it any more.
if not held or (token == ARGV[1] and attempt(held) < attempt(ARGV[3])) then
  local start, left = silent(KEYS[5], math.floor(now / 1000), tonumber(ARGV[7]))
  if start then
    return answer('0', left, 2, '', start)
  end
  redis.call('DEL', KEYS[2])
  fence = give(now, ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[6]))
  -- Expired locks are cleared from the index as in acquire.lua.
  if now % 16 == 0 then
    local stale = redis.call(
      'ZRANGEBYSCORE', KEYS[3], '-inf', math.floor(now / 1000) - 1, 'LIMIT', 0, 32)
    if #stale > 0 then
      redis.call('ZREM', KEYS[3], unpack(stale))
    end
  end
  return answer(fence, ARGV[2], 0, ARGV[1])
end

local left = redis.call('PTTL', KEYS[1])
if token == ARGV[1] then
  return answer(fence, left, 0, token)
end
if ARGV[5] ~= '' then
  if not redis.call('LPOS', KEYS[2], ARGV[5]) then
    redis.call('RPUSH', KEYS[2], ARGV[5])
  end
  -- Those who wait look in several times within this time; a line that nobody looks after goes.
  redis.call('PEXPIRE', KEYS[2], 60000)
end
return answer('0', left, token and 0 or 1, token or held)
