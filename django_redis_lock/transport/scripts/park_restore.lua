-- Put messages that were put aside back into the outbox, or delete them.
-- KEYS: see attending.lua. ARGV[1] "@" and the id of the outbox, ARGV[2] the name of a lock, or '' for all,
-- ARGV[3] '' or 1 to delete them. Returns how many there were; some are done at once, so call it again.
local seen_key = KEYS[5]
-- include parked
local process, now, found = ARGV[1], math.floor(clock() / 1000), 0
local aside = parked_key(process, 'aside')
for _, member in ipairs(redis.call('HKEYS', aside)) do
  local token, name = string.match(member, '^(%S+) (.+)$')
  local text = string.match(redis.call('HGET', aside, member), '\n(.+)$')
  if found < BATCH and (ARGV[2] == '' or ARGV[2] == name) and (ARGV[3] ~= '' or text) then
    if ARGV[3] == '' then
      redis.call('HSET', parked_key(process, ':' .. name), token, text)
      redis.call('ZADD', parked_key(process, 'locks'), now, name)
      put_into_outbox(name, process, token, now)
    end
    redis.call('HDEL', aside, member)
    found = found + 1
  end
end
return found
