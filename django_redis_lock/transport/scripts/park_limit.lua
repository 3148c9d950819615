-- Set the limit of a task in a backlog, and hand the lock off if it has another one now.
-- KEYS: see common.lua and permits.lua.
-- ARGV[1] the name, ARGV[2] "@" and the id of the outbox, ARGV[3] the turn, ARGV[4] the digest of the task's
-- name, ARGV[5] the limit and ARGV[6] the worker. Returns 1, or 0 if it was that or a later worker's.
-- include leaving
if redis.call('EXISTS', backlog_key(ARGV[2], ARGV[3], ARGV[1])) == 1 -- else its last message is gone by now
    and set_parked_limit(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]) then
  leave(ARGV[1], '')
  return 1
end
return 0
