-- Claim a lock that was handed off to the caller, who was notified of it and waits for no answer.
-- KEYS[1] the lock; for one who shares it also KEYS[2], see KEYS[7] in permits.lua.
-- ARGV[1] token, ARGV[2] the end of the lease (ms of the server's clock), as in the grant.
-- Returns 1, or 0 if the token does not hold the lock any more or has claimed it already.
if KEYS[2] then
  -- include permits
  local value = redis.call('HGET', KEYS[2], ARGV[1])
  local head, record = string.match(value or '', '^(%d+ {)"unclaimed":"[^"]*",(.*)$')
  if not head then
    return 0
  end
  redis.call('HSET', KEYS[2], ARGV[1], head .. record)
  redis.call('ZADD', KEYS[1], 'XX', ARGV[2], ARGV[1])
  expire_permits(KEYS[1], KEYS[2])
  return 1
end
local held = redis.call('GET', KEYS[1])
local token, head, record = string.match(held or '', '^(%S+)( %d+ {)"unclaimed":"[^"]*",(.*)$')
if token ~= ARGV[1] then
  return 0
end
-- For a server that is out of memory, see common.lua.
if redis.pcall('SET', KEYS[1], token .. head .. record, 'PXAT', ARGV[2]).err then
  redis.call('PERSIST', KEYS[1])
  redis.call('SET', KEYS[1], token .. head .. record, 'PXAT', ARGV[2])
end
return 1
