-- include common
-- Return the notes about the silent processes, or about all; nil if no process is silent.
local function read_seen(all)
  local found = redis.pcall('ZRANGEBYSCORE', KEYS[5], '-inf', all and '+inf' or '(0', 'WITHSCORES')
  if #found == 0 and not all then
    return nil
  end
  local seen = {}
  for i = 1, #found, 2 do
    seen[found[i]] = tonumber(found[i + 1])
  end
  return seen
end

-- Remove the first waiter whose process is not silent from the queue, and return it; the others stay
-- where they are. After a lock was taken back, a process that was not seen lately counts as silent
-- too: all processes of a host may have vanished together. Returns nil if that waiter has to wait
-- for the holders, false if there is none.
local function next_awake(name, own, seen, now, taken_back, holders)
  local function fits(entry)
    local channel, token, record = string.match(entry, '^(%S+) (%S+) %d+ (.*)$')
    local key = channel and parked_in(channel)
    -- A message waits if this user may not publish it, or not while a cluster moves the slot: that
    -- is, unless these keys can be read. A worker that looks publishes it later.
    local outbox = key and redis.pcall('EXISTS', key .. ':outbox')
    local kept = key and redis.pcall('HEXISTS', key .. '::' .. name, token)
    for _, answer in ipairs({outbox, kept}) do
      if type(answer) == 'table' and not string.find(answer.err, 'WRONGTYPE', 1, true) then
        return false
      end
    end
    return not record or holders < (limit_of(name, record) or 1)
  end
  if not seen and holders == 0 then
    return fits(redis.call('LRANGE', KEYS[2], 0, 0)[1]) and redis.call('LPOP', KEYS[2]) or nil
  end
  local position = 0
  while true do
    local entries = redis.call('LRANGE', KEYS[2], position, position + (seen and 99 or 0))
    if #entries == 0 then
      return false
    end
    for _, entry in ipairs(entries) do
      local channel, token = string.match(entry, '^(%S+) (%S+) ')
      local at = 0
      if channel and token ~= own and not parked_in(channel) then
        at = seen and seen[channel] or 0
        local last = math.max(at, since_of(entry) or 0)
        if taken_back and at >= 0 and now - last > math.max(SEEN, poll_time(channel) or 0) then
          at = -now
          seen[channel] = at
          note(channel, at)
        end
      end
      if at < 0 and now + at <= GONE then
        position = position + 1
      elseif at >= 0 and not fits(entry) then
        return nil
      else
        redis.call('LREM', KEYS[2], 1, entry)
        if at >= 0 then
          return entry
        end
      end
    end
  end
end

-- Grant the lock beside its `holders`; returns the fence. Who has to claim it within `due` ms gets a
-- mark, and the keys outlive that time, so that a caller who polls then sees whose turn it was.
local function grant(name, token, lease, record, now, holders, channel, due)
  local shared, now_ms, stays = string.find(record, '^{"limit":'), math.floor(now / 1000), lease
  if due then
    local mark = string.format('{"unclaimed":"%.0f %.0f %s",', now_ms + due, lease, channel)
    record, stays = mark .. string.sub(record, 2), math.max(lease, due + 2000)
  end
  if not shared then
    return give(name, token, stays, record, now)
  elseif holders == 0 then
    redis.call('DEL', KEYS[1], KEYS[7]) -- a former holder had it alone
  end
  return give_permit(name, token, due or lease, record, now, holders, now_ms + stays)
end

-- Hand the lock off to the longest waiting whose process is awake, or to as many as may have it
-- together with its `holders`, and send them their grants, which they must claim. A waiter whose
-- process receives no grant is dead and dropped. `own` is the token of the caller, who needs no
-- message; `taken_back` tells that the lock was granted to another, who did not claim it.
-- A parked message that is granted the lock comes into the outbox, and counts in `to_publish`.
-- Returns how many have the lock then, infinity for one alone, and whether others wait for them. If
-- no one has it, the caller may overwrite or delete it. A queue that was emptied is not touched: in a
-- cluster that is moving the slot a missing key is taken to be on the other node, and an error.
local to_publish = 0
local function hand_off(name, own, taken_back, holders)
  local left = redis.call('LLEN', KEYS[2])
  if left == 0 then
    return holders
  end
  local before = holders == 0 and left > 1 and redis.call('PTTL', KEYS[1]) or -1
  local now, seen = clock(), read_seen(taken_back) -- usually none is silent
  local now_ms = math.floor(now / 1000)
  for i = 1, left do
    local entry = next_awake(name, own, seen, now_ms, taken_back, holders)
    if not entry then
      return holders, entry == nil
    end
    local channel, token, lease, record = string.match(entry, '^(%S+) (%S+) (%d+) (.*)$')
    lease = tonumber(lease)
    local shared, parked = record and limit_of(name, record), channel and parked_in(channel)
    -- Not another program's data (a lease is 1 ms to 100 years), nor a second entry of a holder, nor
    -- a message that is parked no more.
    if token and lease > 0 and lease < 4e12
        and not (shared and holders > 0 and redis.call('ZSCORE', KEYS[1], token))
        and not (parked and redis.pcall('HEXISTS', parked .. '::' .. name, token) ~= 1) then
      local at_once = parked or token == own
      local due, received = at_once and lease or math.min(lease, CLAIM), 1
      if at_once then
        local fence = grant(name, token, lease, record, now, holders)
        if parked then
          local in_order = string.format('%.3f', math.min(fence / 1000, now_ms + 1))
          redis.call('ZADD', parked .. ':outbox', in_order, token .. ' ' .. name)
          to_publish = to_publish + 1
        end
      else
        local fence = grant(name, token, lease, record, now, holders, channel, due)
        received = notify(
          channel, string.format('grant %s %.0f %.0f %.0f %s', token, fence, lease, now_ms, name))
        if not received then
          due = poll_time(channel) or CLAIM_UNTOLD
          grant(name, token, lease, record, now, holders, channel, due)
        end
      end
      if received ~= 0 then
        notify_of_end(name, KEYS[2], i < left and before or 0, due)
        before = before < 0 and due or math.min(before, due)
        if not shared then
          return math.huge
        end
        holders = holders + 1
      elseif shared then
        remove_permit(name, token)
      end
    end
  end
  return holders
end
