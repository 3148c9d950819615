-- Read who holds locks, without changing anything.
-- KEYS two a lock: the lock, its waiters.
-- Returns {now, ...} with three a lock: its value (nil when free or not a string), its lease left in
-- ms (-1 without end) and the number of waiters (nil where this user may not know). now is the
-- server's clock in ms.
-- What another program has put there is no lock and no line; any other error is one.
local function is_foreign(answer)
  return string.find(answer.err, 'WRONGTYPE', 1, true) ~= nil
end

local time = redis.call('TIME')
local answer = {time[1] * 1000 + math.floor(time[2] / 1000)}
for i = 1, #KEYS, 2 do
  local held = redis.pcall('GET', KEYS[i])
  if type(held) == 'table' and not is_foreign(held) then
    return held
  end
  local waiters = redis.pcall('LLEN', KEYS[i + 1])
  answer[#answer + 1] = type(held) == 'string' and held
  answer[#answer + 1] = redis.call('PTTL', KEYS[i])
  if type(waiters) == 'table' then
    waiters = is_foreign(waiters) and 0
  end
  answer[#answer + 1] = waiters
end
return answer
