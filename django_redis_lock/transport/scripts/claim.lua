-- Claim a lock that was handed off to the caller, who was notified of it and waits for no answer.
-- KEYS[1] the lock. ARGV as in the grant: ARGV[1] token, ARGV[2] fence, ARGV[3] end of the lease (ms of
-- the server's clock). Returns 1, or 0 if that hold has ended or was claimed already.
-- include base
local held = read_hold(redis.call('GET', KEYS[1]))
if held.token ~= ARGV[1] or held.fence ~= ARGV[2] or not held.due then
  return 0
end
local value = write_hold(held.token, held.fence, '-', held.record)
-- For a server that is out of memory, see common.lua.
if redis.pcall('SET', KEYS[1], value, 'PXAT', ARGV[3]).err then
  redis.call('PERSIST', KEYS[1])
  redis.call('SET', KEYS[1], value, 'PXAT', ARGV[3])
end
return 1
