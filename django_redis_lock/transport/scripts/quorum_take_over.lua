-- Pass this server's vote from the holder of a token to the caller.
-- KEYS: see quorum_common.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name, ARGV[5] the digest of the
-- token that must still hold the lock, ARGV[6] the least fence, ARGV[7] for how many ms a server
-- that was started anew does not vote.
-- Returns "fence now", now in microseconds; "0 now" where the lock is free or held by another
-- token; "-1 now start left" where this server does not vote yet, as in quorum_acquire.lua.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function answer(fence)
  return string.format('%s %.0f', fence, now)
end

local start, left = silent(KEYS[5], math.floor(now / 1000), tonumber(ARGV[7]))
if start then
  return answer('-1') .. string.format(' %.0f %.0f', start, left)
end
local token = string.match(redis.call('GET', KEYS[1]) or '', '^[^ ]*')
-- The caller's own token is there where the reply to an earlier sending was lost.
if token ~= ARGV[1] and string.sub(redis.sha1hex(token), 1, 16) ~= ARGV[5] then
  return answer('0')
end
return answer(give(now, ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[6])))
