-- Release the lock and hand it off to the longest waiting; or, if not held, leave the waiters.
-- KEYS: see common.lua.
-- ARGV[1] token, ARGV[2] name, ARGV[3] '' or the waiter to be removed: "process digest lease record",
-- ARGV[4] given to release the lock only if it was not claimed yet.
-- Returns 1: released, 2: the same, and a parked message is to be published, 0: not held by this token.
local held = redis.pcall('GET', KEYS[1])
local ours = type(held) == 'string' and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
if ours and ARGV[4] then
  -- include base
  ours = read_hold(held).due
end
if type(held) == 'table' and redis.call('ZCARD', KEYS[1]) then -- an error if it is not shared
  -- include release_shared
elseif not ours then
  if ARGV[3] ~= '' then
    -- include leaving
    leave(ARGV[2], ARGV[3])
  end
  return 0
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  -- include handing
  if hand_off(ARGV[2], '', false, 0) > 0 then
    return to_publish > 0 and 2 or 1
  end
end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[3], ARGV[2])
return 1
