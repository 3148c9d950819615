-- Shared by the scripts for several locks; prepended to each of them, after common.lua.
-- KEYS[1] to KEYS[5]: see common.lua, for the first lock; then two for each other lock: the lock,
-- its waiters.
local queue = contended()
local keys = {KEYS[1], KEYS[2], unpack(KEYS, 6)}

-- Make the functions of common.lua work on another of the locks.
local function select_lock(i)
  KEYS[1], KEYS[2] = keys[2 * i - 1], keys[2 * i]
end

-- Hand a lock off to the longest waiting, or let it be free. `taken_back` tells that it was granted
-- to another, who did not claim it.
local function release(name, taken_back)
  if not queue.hand_off(name, '', taken_back) then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[3], name)
  end
end
