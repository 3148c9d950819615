-- Release a permit, and hand the lock off to as many as then may have it; or leave the waiters.
-- KEYS: see common.lua and permits.lua. ARGV and what it returns: see release.lua.
-- include permits
local id, ours = digest_of(ARGV[1]), 0
local ends = redis.pcall('ZSCORE', KEYS[1], id)
if type(ends) == 'string' and math.floor(clock() / 1000) <= tonumber(ends)
    and (not ARGV[4] or read_hold(redis.call('HGET', KEYS[7], id)).due) then
  remove_permit(ARGV[2], id, not ARGV[4])
  ours = 1
end
if ARGV[3] ~= '' or redis.call('EXISTS', KEYS[2]) == 1 then
  -- include leaving
  leave(ARGV[2], ARGV[3])
  ours = ours > 0 and to_publish > 0 and 2 or ours
end
return ours
