-- Write the fence of an acquired lock to a server that may have given a smaller one or none, and
-- leave its waiters.
-- KEYS[1] the lock, KEYS[2] its queue, KEYS[3] the last fence, KEYS[4] the waiters.
-- ARGV[1] token, ARGV[2] fence, ARGV[3] '' or the caller's entry among the waiters.
-- Returns 1 if the token holds the lock, else 0. In either case all later fences of this server are
-- greater.
-- include quorum_common
if (tonumber(redis.call('GET', KEYS[3]) or '') or 0) < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[3], ARGV[2])
end
local hold = read_hold(redis.call('GET', KEYS[1]))
if hold.token == ARGV[1] then
  redis.call('SET', KEYS[1], write_hold(hold.token, ARGV[2], hold.claim, hold.record), 'KEEPTTL')
  return 1
end
leave(KEYS[2], KEYS[4], ARGV[3])
return 0
