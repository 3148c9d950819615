-- Take a permit, or join the waiters of the lock: acquire.lua for those who share it.
-- KEYS: see common.lua and permits.lua. ARGV and what it returns: see acquire.lua.
-- include permits
local lease, moment = tonumber(ARGV[2]), clock()
if redis.call('EXISTS', KEYS[2]) == 0 then
  -- An error if one has the lock alone. Permits that have ended are removed now and then.
  local holders = redis.pcall('ZCOUNT', KEYS[1], math.floor(moment / 1000), '+inf')
  if type(holders) == 'number' and holders < limit_of(ARGV[4], ARGV[3])
      and (moment % 16 > 0 or redis.call('ZCARD', KEYS[1]) == holders)
      and (holders == 0 or not redis.call('ZSCORE', KEYS[1], ARGV[1])) then
    return give_permit(ARGV[4], ARGV[1], lease, ARGV[3], moment, holders)
  end
end
-- include joining
