-- Let parked messages leave the queue of a lock without it; they are to be published.
-- KEYS[1] to KEYS[7]: see common.lua and permits.lua; KEYS[8] the outbox.
-- ARGV[1] what stands for the messages among the processes, ARGV[2] the name of the lock, ARGV[3] how
-- their tokens begin. Returns how many there are.
local heard_key = KEYS[5]
-- include common
local found, process, name, prefix = 0, ARGV[1], ARGV[2], ARGV[3]
for _, entry in ipairs(redis.call('ZRANGE', key_of('waiters', process, name), 0, -1)) do
  local token = redis.call('HGET', key_of('tokens', process, name), string.match(entry, '^%x+') or '')
  if token and string.sub(token, 1, #prefix) == prefix then
    remove_waiter(name, process, entry)
    redis.call('ZADD', KEYS[8], found, token .. ' ' .. name) -- due, in this order
    found = found + 1
  end
end
return found
