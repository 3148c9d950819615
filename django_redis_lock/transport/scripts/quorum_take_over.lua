-- Transfer this server's vote from the holder of a token to the caller.
-- KEYS: see quorum_common.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name, ARGV[5] the digest of the
-- token that must still hold the lock, ARGV[6] the least fence, ARGV[7] for how many ms a server
-- does not vote after a restart.
-- Returns "fence now", now in microseconds; "0 now" if the lock is free or held by another token;
-- "-1 now start left" if this server does not vote yet, as in quorum_acquire.lua.
local now = clock()
local function answer(fence)
  return string.format('%s %.0f', fence, now)
end

local start, left = not_voting(KEYS[5], math.floor(now / 1000), tonumber(ARGV[7]))
if start then
  return answer('-1') .. string.format(' %.0f %.0f', start, left)
end
local held = redis.call('GET', KEYS[1])
-- The caller holds it already if the reply to an earlier sending was lost.
if not (holds(ARGV[1], held) or is_held_by_digest(ARGV[5], held)) then
  return answer('0')
end
return answer(vote(now, ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[6])))
