-- Shared by the scripts on several locks; prepended to each of them, after common.lua.
-- KEYS[1] to KEYS[5]: see common.lua, for the first lock; then two for each other lock: the lock,
-- its waiters.
local line = contended()
local keys = {KEYS[1], KEYS[2], unpack(KEYS, 6)}

-- Let what common.lua does be done to one of the locks from here on.
local function turn_to(i)
  KEYS[1], KEYS[2] = keys[2 * i - 1], keys[2 * i]
end

local function holds(token)
  local held = redis.call('GET', KEYS[1])
  return held and string.sub(held, 1, #token + 1) == token .. ' '
end

-- Release a lock that is held, and give it to the longest waiting.
local function let_go(name)
  if not line.hand_over(name, '') then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[3], name)
  end
end
