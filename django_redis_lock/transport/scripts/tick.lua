-- Note that an entry of a schedule is sent, if the caller leads all that would send it.
-- KEYS[1] the lock of the leader, KEYS[2] when each entry was sent last. ARGV[1] token, ARGV[2] entry,
-- ARGV[3] when. Returns 1, or 0 if the token does not hold the lock.
-- include base
if not holds(ARGV[1], tostring(redis.pcall('GET', KEYS[1]))) then -- also another program's data
  return 0
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
