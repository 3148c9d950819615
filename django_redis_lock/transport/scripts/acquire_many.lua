-- Take all of several locks or none, without waiting.
-- KEYS: see many.lua.
-- ARGV four for each lock: token, lease (ms), holder record, name.
-- Returns "fence ttl fence ttl ..."  taken now, or by an earlier sending whose reply was lost
--         the number of a lock that another holds or waits for; then none is taken
-- ttl in ms, -1 for a lease without end.
local busy
for i = 1, #ARGV / 4 do
  select_lock(i)
  local token, name = ARGV[4 * i - 3], ARGV[4 * i]
  local held = redis.call('GET', KEYS[1])
  local now = math.floor(clock() / 1000)
  local due = held and not holds(token, held) and unclaimed_until(held)
  local taken_back = due and due <= now
  if taken_back then
    queue.take_back(name, held, '', now)
  end
  -- As in acquire.lua, the waiters of a lock that is free go first.
  if taken_back or not held then
    release(name, taken_back)
    held = redis.call('GET', KEYS[1])
  end
  if held and not holds(token, held) then
    busy = busy or i
  end
end

local answer = {}
for i = 1, #ARGV / 4 do
  select_lock(i)
  local token, name = ARGV[4 * i - 3], ARGV[4 * i]
  local held = redis.call('GET', KEYS[1])
  local mine = holds(token, held)
  if busy then
    if mine then
      release(name)
    end
  elseif mine then
    answer[#answer + 1] = string.match(held, '^%S+ (%d+) ')
    answer[#answer + 1] = string.format('%.0f', redis.call('PTTL', KEYS[1]))
  else
    local now = clock()
    local fence = give(name, token, tonumber(ARGV[4 * i - 2]), ARGV[4 * i - 1], now)
    answer[#answer + 1] = string.format('%.0f', fence)
    answer[#answer + 1] = ARGV[4 * i - 2]
    if fence % 16 == 0 then
      prune(KEYS[3], now)
    end
  end
end
return busy or table.concat(answer, ' ')
