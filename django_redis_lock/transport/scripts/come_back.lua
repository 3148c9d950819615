-- Let waiters of a process that may have lost their positions come back, or reply that they have the lock.
-- KEYS: see common.lua and permits.lua.
-- ARGV[1] the process, ARGV[2] the name, then for each waiter: its token, position, and "lease record".
-- Returns a number for each: 0: it waits as before, 1: it waits again, 2: it has the lock. The next
-- heartbeat grants it, so that one who has left meanwhile can be removed.
local seen_key = KEYS[5]
-- include common
local process, name, answer, again = ARGV[1], ARGV[2], {}, 0
local held, now = redis.pcall('GET', KEYS[1]), math.floor(clock() / 1000)
for i = 3, #ARGV, 3 do
  local has = type(held) == 'string' and holds(ARGV[i], held)
  if type(held) == 'table' then
    has = read_permit(KEYS[1], KEYS[7], digest_of(ARGV[i]), now)
  end
  local entered = not has and enter(name, process, ARGV[i], ARGV[i + 1], ARGV[i + 2])
  answer[#answer + 1] = entered or 2
  again = again + (entered or 0)
end
if again > 0 then
  poll_within(name, 0, now)
end
return table.concat(answer, ' ')
