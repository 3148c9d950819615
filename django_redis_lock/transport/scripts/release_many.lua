-- Release several locks and give each to the longest waiting.
-- KEYS: see many.lua.
-- ARGV two a lock: token, name.
-- Returns for each 1: released, 0: not held by this token.
local answer = {}
for i = 1, #ARGV / 2 do
  turn_to(i)
  local mine = holds(ARGV[2 * i - 1])
  if mine then
    let_go(ARGV[2 * i])
  end
  answer[i] = mine and 1 or 0
end
return answer
