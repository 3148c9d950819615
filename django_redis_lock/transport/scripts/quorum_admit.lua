-- Let this server vote from now on, after a restart.
-- KEYS[1] the last fence, KEYS[2] the mark of this server.
-- ARGV[1] the greatest fence that others know, ARGV[2] '' or the start that this is meant for, as
-- quorum_acquire.lua returns it.
-- Returns 1, or 0 if the server was restarted again since.
local time = redis.call('TIME')
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if ARGV[2] ~= '' and redis.call('GET', KEYS[2]) ~= run .. ' ' .. ARGV[2] .. ' new' then
  return 0
end
if (tonumber(redis.call('GET', KEYS[1]) or '') or 0) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
end
redis.call('SET', KEYS[2], string.format('%s %.0f', run, time[1] * 1000))
return 1
