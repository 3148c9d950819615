-- Claim a lock that was handed off to the caller, who was notified of it and waits for no answer.
-- KEYS[1] the lock.
-- ARGV[1] token, ARGV[2] the end of the lease (ms of the server's clock), as in the grant.
-- Returns 1, or 0 if the token does not hold the lock any more or has claimed it already.
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
