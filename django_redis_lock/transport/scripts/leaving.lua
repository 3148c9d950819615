-- include handing
-- Take the lock back from a process that did not claim it in time, because it does not run or does
-- not receive: all its waiters are passed over until it is seen. Then the lock has to be handed off.
-- `held` is its value, `asking` the channel on which the caller waits, `now` the clock in ms.
local function take_back(name, held, asking, now)
  local token, lease_ms, channel, record =
    string.match(held, '^(%S+) %d+ {"unclaimed":"%d+ (%d+) ([^%s"]+)",(.*)$')
  if asking ~= '' then
    note(asking, now)
  end
  -- A poller that does not claim though its process has polled since is gone, and would be again.
  local polled = poll_time(channel)
  if polled and (channel == asking
      or (read_seen(true)[channel] or 0) > now - math.max(POLLED, polled / 2)) then
    return
  end
  note(channel, -now)
  -- The waiter keeps its position, unless it is dead, or gone from a process that still runs.
  if channel ~= asking and notify(channel, 'look ' .. name) ~= 0 then
    local endless = redis.call('PTTL', KEYS[2]) == -1
    redis.call('LPUSH', KEYS[2], table.concat({channel, token, lease_ms, '{' .. record}, ' '))
    if not endless then
      redis.call('PEXPIRE', KEYS[2], math.max(QUEUED, polled or 0)) -- the caller may not wait
    end
  end
end

-- Remove the permits that have ended. Returns how many are left, and whether one was taken back.
local function purge(name, asking, now)
  local unclaimed = {}
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)) do
    local value = read_permit(KEYS[1], KEYS[7], token, -1)
    local fence = string.match(value or '', '^%S+ (%d+) {"unclaimed":"')
    unclaimed[#unclaimed + 1] = fence and {tonumber(fence), value}
    remove_permit(name, token, true)
  end
  table.sort(unclaimed, function(one, other) return one[1] > other[1] end) -- the last comes first
  for _, each in ipairs(unclaimed) do
    take_back(name, each[2], asking, now)
  end
  return redis.call('ZCARD', KEYS[1]), #unclaimed > 0
end

-- Leave the waiters, and hand the lock off if it is shared or free: others may be next now.
local function leave(name, entry)
  if entry ~= '' then
    redis.call('LREM', KEYS[2], 1, entry)
  end
  if type(redis.pcall('GET', KEYS[1])) ~= 'string' then
    local holders, taken_back = purge(name, '', math.floor(clock() / 1000))
    if hand_off(name, '', taken_back, holders) == 0 then
      redis.call('DEL', KEYS[1]) -- a waiter who was dead had it alone
      redis.call('ZREM', KEYS[3], name)
    end
  end
end

-- Return the token that has the lock, if it is this one or has this digest, and the lock's value.
local function find_holder(token, digest)
  local held = redis.pcall('GET', KEYS[1])
  local tokens = type(held) == 'table'
    and redis.call('ZRANGEBYSCORE', KEYS[1], math.floor(clock() / 1000), '+inf')
  for _, each in ipairs(tokens or {held and string.match(held, '^[^ ]*') or nil}) do
    if each == token or is_held_by_digest(digest, each) then
      return each, held
    end
  end
end
