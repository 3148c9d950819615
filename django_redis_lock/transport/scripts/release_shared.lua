-- Release a permit, and hand the lock off to as many as then may have it: release.lua for a lock that
-- is shared, or may be.
-- KEYS: see common.lua and permits.lua. ARGV and what it returns: see release.lua.
-- include permits
local score = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
local alone, value = type(score) == 'table', nil
if alone then
  value = redis.call('GET', KEYS[1])
  value = holds(ARGV[1], value) and string.sub(value, #ARGV[1] + 2)
elseif score and (score == 'inf' or math.floor(clock() / 1000) <= tonumber(score)) then
  value = ARGV[4] and redis.call('HGET', KEYS[7], ARGV[1]) or ''
end
local left = 1
local ours = value and (not ARGV[4] or string.find(value, '^%d+ {"unclaimed":"')) and 1 or 0
if ours == 1 and alone then
  redis.call('DEL', KEYS[1])
  left = 0
elseif ours == 1 then
  left = remove_permit(ARGV[1])
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  -- include common
  if alone and ours == 0 then
    redis.call('LREM', KEYS[2], 1, ARGV[3])
    return 0
  end
  leave(ARGV[2], ARGV[3])
  left = redis.call('EXISTS', KEYS[1])
end
if left == 0 then
  redis.call('ZREM', KEYS[3], ARGV[2])
end
return ours
