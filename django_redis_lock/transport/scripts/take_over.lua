-- Take the lock from the holder of a token, before all waiters; they go on waiting.
-- KEYS: see common.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name,
-- ARGV[5] the digest of the token that must still hold the lock.
-- Returns the fence, or nil if the lock is free or held by another token.
-- include common
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  local token = permit_of(ARGV[1], ARGV[5])
  if not token or not string.find(ARGV[3], '^{"limit":') then
    return false
  end
  redis.call('ZREM', KEYS[1], token)
  redis.call('HDEL', KEYS[7], token)
  return give_permit(ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], clock())
elseif string.find(ARGV[3], '^{"limit":') then
  return false
end
-- The caller holds it already if the reply to an earlier sending was lost.
if not (holds(ARGV[1], held) or is_held_by_digest(ARGV[5], held)) then
  return false
end
local before = redis.call('PTTL', KEYS[1])
local fence = give(ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], clock())
notify_of_end(ARGV[4], KEYS[2], before, tonumber(ARGV[2]))
return fence
