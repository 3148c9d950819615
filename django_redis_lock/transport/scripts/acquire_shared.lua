-- Take a permit, or join the waiters of the lock: acquire.lua for those who share it.
-- KEYS: see common.lua and permits.lua. ARGV and what it returns: see acquire.lua.
-- include permits
local lease, moment = tonumber(ARGV[2]), clock()
if redis.call('EXISTS', KEYS[2]) == 0 then
  local now = math.floor(moment / 1000)
  local holders = redis.pcall('ZCARD', KEYS[1]) -- an error if one has the lock alone
  if type(holders) == 'number' and holders < limit_of(ARGV[4], ARGV[3])
      and (holders == 0 or redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. now) == 0
        and not redis.call('ZSCORE', KEYS[1], ARGV[1])) then
    return give_permit(ARGV[4], ARGV[1], lease, ARGV[3], moment)
  end
end
-- include joining
