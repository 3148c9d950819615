-- include handing
-- Remove permits that have ended. Returns how many have not, and whether one was taken back.
local function purge(name, now)
  local taken_back = false
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'LIMIT', 0, BATCH)) do
    local hold = read_permit(KEYS[1], KEYS[7], id, -1)
    local unclaimed = hold and hold.due
    if unclaimed then
      silence(hold.process)
      taken_back = true
    end
    remove_permit(name, id, not unclaimed)
  end
  return redis.call('ZCOUNT', KEYS[1], now, '+inf'), taken_back
end

-- Hand the lock off if it is free, or to waiters that may share it. `left` says that its holder, who had it
-- alone, has it no more.
local function serve(name, taken_back, left)
  local holders = 0
  if not (taken_back or left) and redis.call('EXISTS', KEYS[1]) == 1 then
    holders, taken_back = purge(name, math.floor(clock() / 1000)) -- an error if one has it alone
  end
  if hand_off(name, '', taken_back, holders) == 0 then
    redis.call('DEL', KEYS[1]) -- a waiter who was dead had it alone
    redis.call('ZREM', KEYS[3], name)
  end
end

-- Leave the waiters, if `waiter` is "process digest lease record", and let others be next.
local function leave(name, waiter)
  local process, entry = string.match(waiter, '^(%S+) (.*)$')
  if process then
    remove_waiter(name, process, entry)
  end
  if type(redis.pcall('GET', KEYS[1])) ~= 'string' then
    serve(name, false)
  end
end

-- Do for a lock that is waited for what its end asks for. Returns in how many ms to check it again,
-- nil if that is not known.
local function check(name)
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return nil
  end
  local now, held = math.floor(clock() / 1000), redis.pcall('GET', KEYS[1])
  local hold = read_hold(held)
  if hold.due and hold.due <= now then
    silence(hold.process)
    serve(name, true)
  elseif type(held) ~= 'string' then
    serve(name, false)
  end
  held = redis.pcall('GET', KEYS[1])
  hold = read_hold(held)
  local left = redis.call('PTTL', KEYS[1])
  if type(held) == 'table' then
    left = first_due(KEYS[1], now)
  elseif hold.due then
    left = hold.due - now
  elseif held and not hold.token then
    left = left < 0 and POLL_OTHERS or math.min(left, POLL_OTHERS)
  end
  return left >= 0 and left + 1 or nil -- a lease has ended after its last millisecond
end

-- Return what identifies the holder, and the lock's value, if that holder has this token or digest.
local function find_holder(token, digest)
  local held = redis.pcall('GET', KEYS[1])
  if type(held) == 'string' then
    local own = string.match(held, '^[^ ]*')
    return (own == token or digest_of(own) == digest) and own, held
  end
  for _, id in ipairs(held and {token and digest_of(token) or digest, digest} or {}) do
    local ends = redis.call('ZSCORE', KEYS[1], id)
    if ends and tonumber(ends) >= math.floor(clock() / 1000) then
      return id, held
    end
  end
end
