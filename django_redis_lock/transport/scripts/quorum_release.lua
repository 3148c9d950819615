-- Withdraw this server's vote for a token; or, if there is none, leave the waiters.
-- KEYS: see quorum_common.lua.
-- ARGV[1] token, ARGV[2] name, ARGV[3] '' or the caller's entry among the waiters, to be removed,
-- ARGV[4] '' or the number of the attempt that is withdrawn: a later one retains its vote.
-- Returns 1: released, 0: not held by this token.
-- include quorum_common
local held = redis.call('GET', KEYS[1])
if holds(ARGV[1], held) and (ARGV[4] == '' or read_hold(held).claim == ARGV[4]) then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[6])
  redis.call('ZREM', KEYS[3], ARGV[2])
  return 1
end
leave(ARGV[3])
return 0
