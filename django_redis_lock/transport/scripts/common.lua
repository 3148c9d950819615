-- include permits
-- The queue of a lock. Making these functions takes time, so scripts that are called for locks
-- without waiters include them after what those need.
--
-- KEYS[1] the lock: "token fence record"; or, if several hold it together, see permits.lua.
-- KEYS[2] its waiters, the longest waiting first: "channel token lease record", with the lease in
--         ms. The record includes since when it waits. The channel is how it learns of its grant:
--           "@poll:ms:id"  it polls, and has so many ms to claim the lock
--           "@list:key"    its process pops messages from that list, and sets "key:alive" meanwhile
--           any other      its process is subscribed to this channel
-- KEYS[3] the index of held locks, scored by the end of their leases (ms).
-- KEYS[4] the last fence.
-- KEYS[5] when each waiting process was last seen: its channel, scored by the server's clock in ms.
--         A negative score tells since when it is silent: it did not claim a lock in time.
--
-- The messages are "grant token fence lease now name" to the process that is granted the lock, and
-- "look name" to the processes that wait for a lock that may come free sooner than they know.
--
-- The record of a lock that was handed off and not claimed yet begins with a mark,
-- {"unclaimed":"until lease channel", where until is when the claim is due by the server's clock.
--
-- With redis.pcall another program's data under a key, or a command that this user may not run,
-- does not prevent a grant. A server that is out of memory refuses what takes memory, but only as a
-- script's first write: a write that must not fail is tried again after one that takes none.

-- Milliseconds:
local CLAIM = 1200 -- within which a process that was notified of its grant must claim the lock
local CLAIM_UNTOLD = 2000 -- within which one that could not be must: it polls in this time
local SEEN = 1150 -- for which a process that was seen counts as awake; see waiting.POLL_EVERY
local POLLED = 1000 -- for which a poller counts as running; it polls every 0.8 s
local NEWS = 1000 -- waiters need not know of a lease that ends later: they poll before
local GONE = 5000 -- after which the waiters of a silent process lose their positions
local QUEUED = 10000 -- for which a queue stays that nobody polls; waiters do so several times
local FORGET = 60000 -- after which a process that was not seen is forgotten

local function since_of(entry)
  return tonumber(string.match(entry, '"since":(%d+)}$'))
end

-- Return how many ms a poller has to claim a lock; nil for a channel of another kind.
local function poll_time(channel)
  return tonumber(string.match(channel, '^@poll:(%d+)'))
end

-- Send a message to a waiting process. Returns how many received it; false if that is not known,
-- because the process polls or because this user may not reach its channel or list.
local function notify(channel, message)
  local kind, rest = string.match(channel, '^@(%l+):(.*)$')
  if kind == 'poll' then
    return false
  elseif kind == 'list' then
    local alive = redis.pcall('EXISTS', rest .. ':alive')
    if alive == 1 then
      redis.call('RPUSH', rest, message)
      redis.call('PEXPIRE', rest, 60000)
    end
    return type(alive) == 'number' and alive
  end
  -- In a cluster whose servers know sharded channels it has the shard's hash tag. Receivers are
  -- counted on this server alone.
  local sharded = string.find(channel, '-grant:{%d+}:[^:]*$')
  local receivers = redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
  return type(receivers) == 'number' and receivers
end

-- Notify the waiters of a lock that its lease ends sooner than before. They poll by themselves when
-- a lease ends.
local function notify_of_end(name, queue, before, after)
  if after >= NEWS or (before >= 0 and before <= after) then
    return
  end
  local notified = {}
  for _, entry in ipairs(redis.pcall('LRANGE', queue, 0, -1)) do -- an error has no items
    local channel = string.match(entry, '^%S+')
    if channel and not notified[channel] then
      notified[channel] = true
      notify(channel, 'look ' .. name)
    end
  end
end

-- Return the value of a lock without its mark, and what is left of the lease in ms, 0 or less if it
-- has ended. That of a poller begins now, that of another waiter began with its message. Returns
-- nothing if there is no mark.
local function unmarked(held, now)
  local head, til, lease, channel, record =
    string.match(held, '^(%S+ %d+ {)"unclaimed":"(%d+) (%d+) ([^%s"]+)",(.*)$')
  if not head then
    return nil
  end
  local left = tonumber(lease)
  if not poll_time(channel) then
    left = math.min(left, til - math.min(left, CLAIM) + left - now)
  end
  return head .. record, left
end

-- Claim a lock that was handed off; returns what unmarked tells of the lease.
local function claim(lock, held, now)
  local value, left = unmarked(held, now)
  if value and left > 0 and redis.pcall('SET', lock, value, 'PX', left).err then
    redis.call('PEXPIRE', lock, left)
    redis.call('SET', lock, value, 'PX', left)
  end
  return left
end

-- Claim a permit that was handed off and has not ended, as claim does a lock. Returns also the end of
-- the last permit.
local function claim_permit(lock, permits, held, now)
  local value, left = unmarked(held, now)
  if value then
    local token, rest = string.match(value, '^(%S+) (.*)$')
    redis.call('HSET', permits, token, rest)
    redis.call('ZADD', lock, now + left, token)
    return left, expire_permits(lock, permits)
  end
end

-- Note when a process was seen, or with a minus sign since when it is silent.
local function note(channel, at)
  redis.pcall('PEXPIRE', KEYS[5], 2 * FORGET)
  if redis.pcall('ZADD', KEYS[5], at, channel) == 1 then
    redis.pcall('PEXPIRE', KEYS[5], 2 * FORGET)
  end
end

-- Return the notes about the silent processes, or about all; nil if no process is silent.
local function read_seen(all)
  local most = all and '+inf' or '(0'
  local found = redis.pcall('ZRANGEBYSCORE', KEYS[5], '-inf', most, 'WITHSCORES')
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
    local record = string.match(entry, '^%S+ %S+ %d+ (.*)$')
    return not record or holders < (limit_of(name, record) or 1)
  end
  if not seen then
    if holders > 0 and not fits(redis.call('LINDEX', KEYS[2], 0) or '') then
      return nil
    end
    local entry = redis.call('LPOP', KEYS[2])
    if entry and holders == 0 and not fits(entry) then -- the limit is 0
      redis.call('LPUSH', KEYS[2], entry)
      redis.call('PEXPIRE', KEYS[2], QUEUED)
      return nil
    end
    return entry
  end
  local position = 0
  while true do
    local entries = redis.call('LRANGE', KEYS[2], position, position + 99)
    if #entries == 0 then
      return false
    end
    for _, entry in ipairs(entries) do
      local channel, token = string.match(entry, '^(%S+) (%S+) ')
      local at = 0
      if channel and token ~= own then
        at = seen[channel] or 0
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

-- Grant a waiter the lock, which it must claim within `due` ms; returns the fence.
local function offer(name, token, lease, record, channel, due, now, holders)
  local til = math.floor(now / 1000) + due
  local mark = string.format('{"unclaimed":"%.0f %.0f %s",', til, lease, channel)
  return grant(name, token, lease, record, now, holders, mark, due)
end

-- Hand the lock off to those who wait longest and whose processes are awake, and send them their
-- grants: to one, or to as many as may have it together with its `holders`. A waiter whose process
-- receives no grant is dead and dropped. The new holders must claim the lock. `own` is the token of
-- the caller, who needs no message; `taken_back` tells that the lock was granted to another, who did
-- not claim it.
-- Returns how many have the lock then, infinity for one who has it alone, and whether others wait
-- for them, or the caller is one of them. If no one has it, the caller may overwrite or delete it. A
-- queue that was emptied is not touched again: in a cluster that is moving the slot a key that does
-- not exist is taken to be on the other node, and the script would fail halfway.
local function hand_off(name, own, taken_back, holders)
  holders = holders or 0
  local left = redis.call('LLEN', KEYS[2])
  if left == 0 then
    return holders
  end
  local before = holders == 0 and left > 1 and redis.call('PTTL', KEYS[1]) or -1
  local now = clock()
  local now_ms = math.floor(now / 1000)
  local seen, served = read_seen(taken_back), false -- usually nil
  for i = 1, left do
    local entry = next_awake(name, own, seen, now_ms, taken_back, holders)
    if not entry then
      return holders, entry == nil or served
    end
    local channel, token, lease, record = string.match(entry, '^(%S+) (%S+) (%d+) (.*)$')
    lease = tonumber(lease)
    -- Another program may have put anything there; a lease is between 1 ms and 100 years.
    if token and lease > 0 and lease < 4e12 then
      local due, received = token == own and lease or math.min(lease, CLAIM), 1
      local shared = limit_of(name, record)
      if token == own then
        grant(name, token, lease, record, now, holders)
        served = true
      else
        local fence = offer(name, token, lease, record, channel, due, now, holders)
        received = notify(
          channel, string.format('grant %s %.0f %.0f %.0f %s', token, fence, lease, now_ms, name))
        if not received then
          due = poll_time(channel) or CLAIM_UNTOLD
          offer(name, token, lease, record, channel, due, now, holders)
        end
      end
      if received ~= 0 then
        if i < left then
          notify_of_end(name, KEYS[2], before, due)
        end
        if not shared then
          return math.huge
        end
        holders = holders + 1
      elseif shared then
        remove_permit(token)
      end
    end
  end
  return holders, served
end

-- Take the lock back from a process that did not claim it in time, because it does not run or does
-- not receive: all its waiters are passed over until it is seen. Then the lock has to be handed off.
-- `held` is its value, `asking` the channel on which the caller waits, `now` the clock in ms.
local function take_back(name, held, asking, now)
  local token, lease_ms, channel, record =
    string.match(held, '^(%S+) %d+ {"unclaimed":"%d+ (%d+) ([^%s"]+)",(.*)$')
  if asking ~= '' then
    note(asking, now)
  end
  -- A poller that does not claim its lock, though its process has polled since, is gone. To put it
  -- back would delay the others again and again.
  local polled = poll_time(channel)
  if polled and (channel == asking
      or (read_seen(true)[channel] or 0) > now - math.max(POLLED, polled / 2)) then
    return
  end
  note(channel, -now)
  -- The waiter keeps its position, unless it is dead, or gone from a process that still runs.
  if channel ~= asking and notify(channel, 'look ' .. name) ~= 0 then
    redis.call('LPUSH', KEYS[2], table.concat({channel, token, lease_ms, '{' .. record}, ' '))
    redis.call('PEXPIRE', KEYS[2], QUEUED) -- the caller may not wait, and then does not set it
  end
end

-- Remove the permits that have ended. Returns how many are left, and whether one was taken back, as
-- take_back does it. Raises an error if the lock is not held by permits.
local function purge(name, asking, now)
  local unclaimed = {}
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)) do
    local value = redis.pcall('HGET', KEYS[7], token)
    remove_permit(token)
    if type(value) == 'string' and string.find(value, '^%d+ {"unclaimed":"') then
      table.insert(unclaimed, {tonumber(string.match(value, '^%d+')), token .. ' ' .. value})
    end
  end
  -- The last comes first, so that all are at the head of the queue in order.
  table.sort(unclaimed, function(one, other) return one[1] > other[1] end)
  for _, each in ipairs(unclaimed) do
    take_back(name, each[2], asking, now)
  end
  return redis.call('ZCARD', KEYS[1]), #unclaimed > 0
end

-- Leave the waiters of a lock that is shared, and hand it off: without this entry, or that of an
-- earlier holder, others may be next. Returns 0.
local function leave(name, entry)
  if entry ~= '' then
    redis.call('LREM', KEYS[2], 1, entry)
  end
  local holders, taken_back = purge(name, '', math.floor(clock() / 1000))
  if hand_off(name, '', taken_back, holders) == 0 then
    redis.call('DEL', KEYS[1]) -- as it may have been offered to the dead
  end
  return 0
end

-- Return a function that tells whether a waiter is gone: nothing was seen of its process for `limit`
-- ms. It was killed, it is stopped, or its host has vanished. A poller may poll more seldom. `seen`
-- is KEYS[5] above. Nobody is gone if that can't be read, or is not used.
local function gone_for(limit, seen, now)
  local number, scores = redis.pcall('ZCARD', seen), {}
  local known = type(number) == 'number' and number > 0
  return function(entry)
    local channel = string.match(entry, '^%S+')
    if not known or not channel then
      return false
    end
    if scores[channel] == nil then
      scores[channel] = redis.pcall('ZSCORE', seen, channel)
    end
    local at = tonumber(scores[channel] or since_of(entry))
    local most = math.max(limit, (poll_time(channel) or 0) / 2)
    return at ~= nil and math.abs(now - math.abs(at)) > most
  end
end
