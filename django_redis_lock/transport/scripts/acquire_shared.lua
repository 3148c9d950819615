-- Take a permit, or join the waiters of the lock: acquire.lua for callers that share it.
-- KEYS: see common.lua and permits.lua. ARGV and what it returns: see acquire.lua.
-- include permits
local lease, moment = tonumber(ARGV[2]), clock()
if ARGV[9] and redis.call('HEXISTS', KEYS[8], ARGV[1]) == 1 then
  return string.format('0 -1 %.0f 2', math.floor(moment / 1000)) -- an earlier sending has parked it
end
local there = redis.call('EXISTS', KEYS[1], KEYS[2])
local holders = there == 0 and 0
if there == 1 then -- an error if one has it alone, 0 if others wait or all permits have ended
  holders = redis.pcall('ZCOUNT', KEYS[1], math.floor(moment / 1000), '+inf')
  holders = type(holders) == 'number' and holders > 0 and holders
end
if holders and holders < limit_of(ARGV[4], ARGV[3])
    and (moment % 16 > 0 or redis.call('ZCARD', KEYS[1]) == holders) -- else some have ended
    and (holders == 0 or not redis.call('ZSCORE', KEYS[1], digest_of(ARGV[1]))) then
  return granted(give_permit(ARGV[4], ARGV[1], lease, ARGV[3], moment, holders), lease, moment)
end
-- include joining
