-- include leaving
-- Do for locks that are due what their ends ask for. KEYS[1], KEYS[2] and KEYS[7] lack the name.
local lock, queue, permits, due = KEYS[1], KEYS[2], KEYS[7], key_of('due')

local function turn_to(name)
  KEYS[1], KEYS[2], KEYS[7] = lock .. name, queue .. name, permits .. name
end

local function attend(name, now)
  turn_to(name)
  redis.call('ZREM', due, name)
  local _, left = pcall(check, name)
  local endless = redis.call('PTTL', KEYS[2])
  if endless > -2 then
    poll_within(name, type(left) == 'number' and left or endless == -1 and math.huge or STAYS / 2, now)
  end
end

-- Attend to locks that are due within some ms. Returns in how many ms the next one is, -1 if none.
local function attend_due(now, ahead)
  for _, name in ipairs(redis.pcall('ZRANGEBYSCORE', due, '-inf', now + ahead, 'LIMIT', 0, BATCH)) do
    attend(name, now)
  end
  return first_due(due, now)
end
