-- Read the queue of a lock, without changing anything.
-- KEYS[1] the waiters, KEYS[2] when each waiting process was last seen; see common.lua.
-- ARGV[1] how many waiters to read at most, or -1 for all.
-- Returns {now, waiter, ...}, the longest waiting first, without those whose process was not seen
-- lately. now is the server's clock in ms.
-- include common
local answer, from = {math.floor(clock() / 1000)}, 0
local gone = gone_for(3000, KEYS[2], answer[1])
repeat
  local page = redis.pcall('LRANGE', KEYS[1], from, from + 99)
  -- Another program's data under this key is no queue, and has no items; any other error is returned.
  if page.err and not string.find(page.err, 'WRONGTYPE', 1, true) then
    return page
  end
  for _, waiter in ipairs(page) do
    if #answer - 1 == tonumber(ARGV[1]) then
      return answer
    elseif not gone(waiter) then
      answer[#answer + 1] = waiter
    end
  end
  from = from + 100
until #page < 100
return answer
