-- Release several locks and hand each off to the longest waiting.
-- KEYS: see many.lua.
-- ARGV two for each lock: token, name.
-- Returns for each lock 1: released, 0: not held by this token.
local answer = {}
for i = 1, #ARGV / 2 do
  select_lock(i)
  local mine = holds(ARGV[2 * i - 1], redis.call('GET', KEYS[1]))
  if mine then
    release(ARGV[2 * i])
  end
  answer[i] = mine and 1 or 0
end
return answer
