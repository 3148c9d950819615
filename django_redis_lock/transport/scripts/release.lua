-- Release the lock and give it to the longest waiting; or, giving up, leave the waiters.
-- KEYS: see common.lua.
-- ARGV[1] token, ARGV[2] name, ARGV[3] '' or the caller's entry among the waiters, to be removed,
-- ARGV[4] there where the lock is released only if nobody has claimed it.
-- Returns 1: released, 0: not held by this token.
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
  and not (ARGV[4] and not unclaimed_until(held)) then
  if redis.call('EXISTS', KEYS[2]) == 0 or not contended().hand_over(ARGV[2], '') then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[3], ARGV[2])
  end
  return 1
end
if ARGV[3] ~= '' then
  redis.call('LREM', KEYS[2], 1, ARGV[3])
end
return 0
