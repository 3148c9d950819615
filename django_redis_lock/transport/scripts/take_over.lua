-- Take the lock from the holder of a token, before all waiters; they go on waiting.
-- KEYS: see common.lua and permits.lua. ARGV[1] to ARGV[4]: see acquire.lua,
-- ARGV[5] the digest of the token that must still hold the lock, ARGV[6] given to only ask: that writes
-- what is there already, for replicas to acknowledge, and returns 1 in place of the fence. Returns the
-- fence, or nil if that holder no longer has it, or shares it with others and the record does not.
-- include leaving
-- The caller holds it already if the reply to an earlier sending was lost.
local id, held = find_holder(ARGV[1], ARGV[5])
local will_share, shared = shares(ARGV[3]), type(held) == 'table'
if not id or (shared and not will_share
    and redis.call('ZCOUNT', KEYS[1], math.floor(clock() / 1000), '+inf') > 1) then
  return false
elseif ARGV[6] then
  local last = redis.pcall('GET', KEYS[4])
  redis.call('SET', KEYS[4], type(last) == 'string' and last or '0')
  return 1
end
local before, others = redis.call('PTTL', KEYS[1]), shared and remove_permit(ARGV[4], id) or 0
local fence = grant(ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], clock(), others)
if will_share and not shared then
  hand_off(ARGV[4], '', false, 1)
else
  note_sooner(ARGV[4], KEYS[2], before, tonumber(ARGV[2]), math.floor(clock() / 1000))
end
return granted(fence, ARGV[2], clock())
