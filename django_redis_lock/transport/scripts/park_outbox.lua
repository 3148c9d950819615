-- Take on the parked messages that are to be published, and the locks that have to be looked at.
-- KEYS[1] the outbox, KEYS[2] the locks; see common.lua.
-- ARGV[1] how many messages to take, ARGV[2] how many locks, or -1 for all, due or not, ARGV[3] in how
-- many ms this has to be done, or another caller does it, ARGV[4] what the keys of messages begin with.
-- Returns {{token, message, ...}, {name, ...}, after how many ms to look at the next lock, or -1}.
-- include base
local now, messages = math.floor(clock() / 1000), {}
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now + 1, 'LIMIT', 0, ARGV[1])) do
  local token, name = string.match(each, '^(%S+) (.*)$')
  local message = redis.call('HGET', ARGV[4] .. name, token)
  if message then
    redis.call('ZADD', KEYS[1], now + ARGV[3], each)
    messages[#messages + 1] = token
    messages[#messages + 1] = message
  else
    redis.call('ZREM', KEYS[1], each)
  end
end
local til = ARGV[2] == '-1' and '+inf' or now
local names = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', til, 'LIMIT', 0, ARGV[2])
for _, name in ipairs(names) do
  redis.call('ZADD', KEYS[2], now + ARGV[3], name)
end
local next_lock = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
return {messages, names, next_lock and math.max(next_lock - now, 0) or -1}
