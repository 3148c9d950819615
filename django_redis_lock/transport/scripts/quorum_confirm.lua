-- Write the fence of an acquired lock to a server that may have given a smaller one or none, and
-- leave its waiters.
-- KEYS: see quorum_common.lua.
-- ARGV[1] token, ARGV[2] fence, ARGV[3] '' or the caller's entry among the waiters. Returns 1 if the
-- token holds the lock, else 0. In either case all later fences of this server are greater.
-- include quorum_common
learn_fence(ARGV[2])
local hold = read_hold(redis.call('GET', KEYS[1]))
if hold.token == ARGV[1] then
  redis.call('SET', KEYS[1], write_hold(hold.token, ARGV[2], hold.claim, hold.record), 'KEEPTTL')
  return 1
end
leave(ARGV[3])
return 0
