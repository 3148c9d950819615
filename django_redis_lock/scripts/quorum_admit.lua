-- Let this server vote from now on, though it was started anew.
-- KEYS[1] its mark.
-- Returns 1.
local time = redis.call('TIME')
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
redis.call('SET', KEYS[1], string.format('%s %.0f', run, time[1] * 1000))
return 1
