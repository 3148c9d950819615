-- Take all of several locks, or none; nobody waits.
-- KEYS: see many.lua.
-- ARGV four a lock: token, lease (ms), holder record, name.
-- Returns "fence ttl fence ttl ..."  taken now, or by an earlier sending whose reply was lost
--         the number of a lock that another holds or waits for; then none is taken
-- ttl in ms, -1 for a lease without end.
local busy
for i = 1, #ARGV / 4 do
  turn_to(i)
  local token, name = ARGV[4 * i - 3], ARGV[4 * i]
  local held = redis.call('GET', KEYS[1])
  local now = math.floor(clock() / 1000)
  local due = held and not holds(token) and unclaimed_until(held)
  local taken_back = due and due <= now
  if taken_back then
    line.take_back(name, held, '', now)
  end
  -- As acquire.lua does: who waits for a lock that came free goes first.
  local gone = taken_back or not held
  if (not gone or line.hand_over(name, '', taken_back)) and not holds(token) then
    busy = busy or i
  end
end

local answer = {}
for i = 1, #ARGV / 4 do
  turn_to(i)
  local token, name = ARGV[4 * i - 3], ARGV[4 * i]
  local mine = holds(token)
  if busy then
    if mine then
      let_go(name)
    end
  elseif mine then
    answer[#answer + 1] = string.match(redis.call('GET', KEYS[1]), '^%S+ (%d+) ')
    answer[#answer + 1] = string.format('%.0f', redis.call('PTTL', KEYS[1]))
  else
    local now = clock()
    local fence = give(name, token, tonumber(ARGV[4 * i - 2]), ARGV[4 * i - 1], now)
    answer[#answer + 1] = string.format('%.0f', fence)
    answer[#answer + 1] = ARGV[4 * i - 2]
    -- As acquire.lua does: up to two expired locks leave the index for each that comes into it.
    if fence % 16 == 0 then
      local stale = redis.call(
        'ZRANGEBYSCORE', KEYS[3], '-inf', math.floor(now / 1000) - 1, 'LIMIT', 0, 32)
      if #stale > 0 then
        redis.call('ZREM', KEYS[3], unpack(stale))
      end
    end
  end
end
return busy or table.concat(answer, ' ')
