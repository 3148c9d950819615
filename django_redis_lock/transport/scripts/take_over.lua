-- Take the lock from the holder of a token, before all waiters; they go on waiting.
-- KEYS: see common.lua and permits.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name,
-- ARGV[5] the digest of the token that must still hold the lock.
-- Returns the fence, or nil if that holder has it no more, or shares it and the record does not.
-- include leaving
-- The caller holds it already if the reply to an earlier sending was lost.
local token, held = find_holder(ARGV[1], ARGV[5])
local shares, shared = string.find(ARGV[3], '^{"limit":'), type(held) == 'table'
if not token or (shared and not shares) then
  return false
end
local before, others = redis.call('PTTL', KEYS[1]), shared and remove_permit(ARGV[4], token) or 0
local fence = grant(ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], clock(), others)
if shares and not shared then
  hand_off(ARGV[4], '', false, 1)
else
  notify_of_end(ARGV[4], KEYS[2], before, tonumber(ARGV[2]))
end
return fence
