-- Let this server vote from now on, after a restart.
-- KEYS: see quorum_common.lua.
-- ARGV[1] the greatest fence that others know, ARGV[2] '' or the start that this is meant for, as
-- quorum_acquire.lua returns it. Returns 1, or 0 if the server was restarted again since.
-- include quorum_common
if ARGV[2] ~= '' and redis.call('GET', KEYS[5]) ~= run_id() .. ' ' .. ARGV[2] .. ' new' then
  return 0
end
learn_fence(ARGV[1])
redis.call('SET', KEYS[5], string.format('%s %.0f', run_id(), math.floor(clock() / 1000)))
return 1
