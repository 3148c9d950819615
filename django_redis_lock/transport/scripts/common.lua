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

-- Return the permit of a token as the value of a lock, and what is left of it in ms (-1 without end);
-- nothing if there is none, or it has ended at `now`, or its record was lost.
local function read_permit(lock, permits, token, now)
  local score, rest = redis.pcall('ZSCORE', lock, token), redis.pcall('HGET', permits, token)
  local ends = type(score) == 'string' and tonumber(score) or now - 1
  if ends >= now and rest then
    rest = type(rest) == 'string' and rest or ''
    return token .. ' ' .. rest, ends < math.huge and ends - now or -1
  elseif ends >= now and redis.call('ZREM', lock, token) == 1 and redis.call('EXISTS', lock) == 1 then
    expire_permits(lock, permits)
  end
end

-- Remove the mark from the value of a lock, or of a permit if the key `permits` is given. The lease
-- of a poller begins now, that of another waiter began with its message. Returns what is left of it
-- in ms, 0 or less if it has ended; nil if there is no mark.
local function claim(lock, held, now, permits, index, name)
  local token, head, til, lease, channel, record =
    string.match(held, '^(%S+) (%d+ {)"unclaimed":"(%d+) (%d+) ([^%s"]+)",(.*)$')
  if not token then
    return nil
  end
  local left = tonumber(lease)
  if not poll_time(channel) then
    left = math.min(left, til - math.min(left, CLAIM) + left - now)
  end
  local value = table.concat({token, head .. record}, ' ')
  if permits then
    redis.call('PERSIST', permits)
    redis.call('HSET', permits, token, head .. record)
    redis.call('ZADD', lock, now + left, token)
    redis.pcall('ZADD', index, expire_permits(lock, permits), name)
  elseif left > 0 and redis.pcall('SET', lock, value, 'PX', left).err then
    redis.call('PEXPIRE', lock, left)
    redis.call('SET', lock, value, 'PX', left)
  end
  return left
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
    local record = string.match(entry, '^%S+ %S+ %d+ (.*)$')
    return not record or holders < (limit_of(name, record) or 1)
  end
  if not seen and holders == 0 then
    local entry = redis.call('LPOP', KEYS[2])
    if fits(entry) then
      return entry
    end
    redis.call('LPUSH', KEYS[2], entry) -- the limit is 0
    redis.call('PEXPIRE', KEYS[2], math.max(QUEUED, poll_time(entry) or 0))
    return nil
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
      if channel and token ~= own then
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
-- Returns how many have the lock then, infinity for one alone, and whether others wait for them. If
-- no one has it, the caller may overwrite or delete it. A queue that was emptied is not touched: in a
-- cluster that is moving the slot a missing key is taken to be on the other node, and an error.
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
    local shared = record and limit_of(name, record)
    -- Not another program's data (a lease is 1 ms to 100 years), nor a second entry of a holder.
    if token and lease > 0 and lease < 4e12
        and not (shared and holders > 0 and redis.call('ZSCORE', KEYS[1], token)) then
      local due, received = token == own and lease or math.min(lease, CLAIM), 1
      if token == own then
        grant(name, token, lease, record, now, holders)
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
    redis.call('PEXPIRE', KEYS[2], math.max(QUEUED, polled or 0)) -- the caller may not wait
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
