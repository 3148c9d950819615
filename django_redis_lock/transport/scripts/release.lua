-- Release the lock and hand it off to the longest waiting; or, if not held, leave the waiters.
-- KEYS: see common.lua.
-- ARGV[1] token, ARGV[2] name, ARGV[3] '' or the caller's entry among the waiters, to be removed,
-- ARGV[4] given to release the lock only if it was not claimed yet.
-- Returns 1: released, 0: not held by this token.
local held = redis.call('GET', KEYS[1])
if holds(ARGV[1], held) and not (ARGV[4] and not unclaimed_until(held)) then
  if redis.call('EXISTS', KEYS[2]) == 0 or not contended().hand_off(ARGV[2], '') then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[3], ARGV[2])
  end
  return 1
end
if ARGV[3] ~= '' then
  redis.call('LREM', KEYS[2], 1, ARGV[3])
end
return 0
