-- Take the lock from the holder of a token, before all waiters; they go on waiting.
-- KEYS: see common.lua and permits.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name,
-- ARGV[5] the digest of the token that must still hold the lock.
-- Returns the fence, or nil if the lock is free or held by another token, or by one of several and
-- the record asks for it alone.
-- include common
local held, shares = redis.pcall('GET', KEYS[1]), string.find(ARGV[3], '^{"limit":')
local before, others = redis.pcall('PTTL', KEYS[1]), 0
-- The caller holds it already if the reply to an earlier sending was lost.
if type(held) == 'table' then
  local token = shares and permit_of(ARGV[1], ARGV[5])
  if not token then
    return false
  end
  others = remove_permit(token)
elseif not (holds(ARGV[1], held) or is_held_by_digest(ARGV[5], held)) then
  return false
end
local fence = grant(ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], clock(), others)
if shares and type(held) ~= 'table' then
  hand_off(ARGV[4], '', false, 1) -- one had it alone
else
  notify_of_end(ARGV[4], KEYS[2], before, tonumber(ARGV[2]))
end
return fence
