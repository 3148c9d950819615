-- Tell the last fence, and whether this server votes.
-- KEYS[1] the last fence, KEYS[2] the mark of this server.
-- ARGV[1] for how many ms a server that was started anew does not vote.
-- Returns "fence votes", where votes is 1 or 0.
local time = redis.call('TIME')
local start = silent(KEYS[2], time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1]))
return (redis.call('GET', KEYS[1]) or '0') .. (start and ' 0' or ' 1')
