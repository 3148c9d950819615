-- Return the last fence, and whether this server votes.
-- KEYS: see quorum_common.lua. ARGV[1] for how many ms a server does not vote after a restart.
-- Returns "fence votes", where votes is 1 or 0.
-- include quorum_common
local start = not_voting(math.floor(clock() / 1000), tonumber(ARGV[1]))
return (string.match(redis.call('GET', KEYS[4]) or '', '^%d+$') or '0') .. (start and ' 0' or ' 1')
