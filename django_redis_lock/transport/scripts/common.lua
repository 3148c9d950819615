-- Shared by the scripts that can grant a lock; prepended to each of them.
-- KEYS[1] the lock, KEYS[2] its waiters, KEYS[3] the index of held locks, KEYS[4] the last fence,
-- KEYS[5] when each waiting process was last heard: its channel, scored by the server's clock in
-- ms. A negative score tells since when it is silent: it did not claim a lock in time. A waiter is
-- "channel token lease record", with the lease in ms. Its record includes since when it waits. Its
-- channel is how it learns of its grant:
--   "@poll:ms:id"  it polls, and has so many ms to claim the lock
--   "@list:key"    its process pops messages from that list, and keeps "key:alive" while it does
--   any other      its process is subscribed to this channel
-- The messages are "grant token fence lease now name" to the process that is granted the lock, and
-- "look name" to the processes that wait for a lock that may come free sooner than they know.
-- The record of a lock that was handed off and not claimed yet begins with
-- {"unclaimed":"until lease channel", where until is when the claim is due by the server's clock.

-- Write the lock for `token` with a lease of `lease` ms from `now` (microseconds). Returns the
-- fence: the clock, or one more than the last fence if the clock has not passed that.
local function give(name, token, lease, record, now)
  local fence, written = now, string.format('%.0f', now)
  local last = tonumber(redis.call('SET', KEYS[4], written, 'GET') or '')
  -- Numbers from 2^53 up are not exact; no script has written one.
  if last and last >= now and last < 9007199254740992 then
    fence = last + 1
    written = string.format('%.0f', fence)
    redis.call('SET', KEYS[4], written)
  end
  redis.call('SET', KEYS[1], token .. ' ' .. written .. ' ' .. record, 'PX', lease)
  redis.call('ZADD', KEYS[3], math.floor(now / 1000) + lease, name)
  return fence
end

-- Return when (ms) the claim of a lock that was handed off is due; nil if none is.
local function unclaimed_until(held)
  return tonumber(string.match(held, '^%S+ %d+ {"unclaimed":"(%d+) '))
end

-- Return the functions for locks that have waiters. They are made here, when they are needed,
-- because making them takes time that other locks need not spend.
local function contended()
  -- Milliseconds:
  local CLAIM = 1200 -- within which a process that was told of its grant must claim the lock
  local CLAIM_UNTOLD = 2000 -- within which one that could not be told must: it looks in this time
  local HEARD = 1150 -- for which a process that was heard counts as awake; see waiting.LOOK_EVERY
  local LOOKED = 1000 -- for which a poller counts as running; it looks every 0.8 s
  local NEWS = 1000 -- waiters need not be told of a lease that ends later: they look before
  local GONE = 5000 -- after which the waiters of a silent process lose their places
  local FORGET = 60000 -- after which a process that was not heard is forgotten

  -- Send a message to a waiting process. Returns how many received it; false if it can't be told,
  -- because it polls or because this user may not reach its channel or list.
  local function tell(channel, message)
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

  -- Tell the waiters of a lock that its lease ends sooner than before. They look by themselves when
  -- a lease ends.
  local function tell_of_end(name, queue, before, after)
    if after >= NEWS or (before >= 0 and before <= after) then
      return
    end
    local told = {}
    for _, entry in ipairs(redis.pcall('LRANGE', queue, 0, -1)) do -- an error has no items
      local channel = string.match(entry, '^%S+')
      if channel and not told[channel] then
        told[channel] = true
        tell(channel, 'look ' .. name)
      end
    end
  end

  -- Parse the value of a lock that was handed off and not claimed yet. Returns when the claim is
  -- due (ms), the lease (ms), the channel of the new holder, the record without the mark, the token
  -- and the fence; nil for any other value.
  local function unclaimed(held)
    local token, fence, til, lease, channel, record =
      string.match(held, '^(%S+) (%d+) {"unclaimed":"(%d+) (%d+) ([^%s"]+)",(.*)$')
    if token then
      return tonumber(til), tonumber(lease), channel, '{' .. record, token, fence
    end
  end

  -- Remove the mark from the value of a lock. The lease of a poller begins now, that of another
  -- waiter began when it was told. Returns what is left of it in ms, 0 or less if it has ended.
  local function claim(lock, held, now)
    local til, lease, channel, record, token, fence = unclaimed(held)
    local left = lease
    if not string.find(channel, '^@poll:') then
      left = math.min(lease, til - math.min(lease, CLAIM) + lease - now)
    end
    local value = token .. ' ' .. fence .. ' ' .. record
    -- A server that is out of memory refuses what takes memory, but only as a script's first write.
    if left > 0 and redis.pcall('SET', lock, value, 'PX', left).err then
      redis.call('PEXPIRE', lock, left)
      redis.call('SET', lock, value, 'PX', left)
    end
    return left
  end

  -- Note when a process was heard, or with a minus sign since when it is silent. With pcall, here
  -- and below: another program's data under this key must not prevent a grant.
  local function note(channel, at)
    -- A server that is out of memory takes a note that is not the script's first write.
    redis.pcall('PEXPIRE', KEYS[5], 2 * FORGET)
    if redis.pcall('ZADD', KEYS[5], at, channel) == 1 then
      redis.pcall('PEXPIRE', KEYS[5], 2 * FORGET)
    end
  end

  -- Note that a process was heard, and forget some that no longer wait.
  local function hear(channel, now)
    note(channel, now)
    local gone = redis.pcall('ZRANGEBYSCORE', KEYS[5], '(0', now - FORGET, 'LIMIT', 0, 32)
    if #gone > 0 then
      redis.call('ZREM', KEYS[5], unpack(gone))
    end
  end

  -- Return the notes about the silent processes, or about all; nil if no process is silent.
  local function read_heard(all)
    local most = all and '+inf' or '(0'
    local found = redis.pcall('ZRANGEBYSCORE', KEYS[5], '-inf', most, 'WITHSCORES')
    if #found == 0 and not all then
      return nil
    end
    local heard = {}
    for i = 1, #found, 2 do
      heard[found[i]] = tonumber(found[i + 1])
    end
    return heard
  end

  -- Return whether the process of a waiter is silent, and whether it has been for so long that the
  -- waiter is forgotten. After a lock was taken back, a process that was not heard lately counts as
  -- silent too: all processes of a host may have vanished together.
  local function is_silent(entry, channel, heard, now, taken_back)
    local at = heard[channel] or 0
    if at < 0 then
      return true, now + at > GONE
    end
    local since = tonumber(string.match(entry, '"since":(%d+)}$') or 0)
    local limit = math.max(HEARD, tonumber(string.match(channel, '^@poll:(%d+)') or 0))
    if taken_back and now - math.max(at, since) > limit then
      heard[channel] = -now
      note(channel, -now)
      return true, false
    end
    return false, false
  end

  -- Remove the first waiter whose process is not silent from the queue, and return it. The others
  -- keep their places.
  local function next_awake(own, heard, now, taken_back)
    if not heard then
      return redis.call('LPOP', KEYS[2])
    end
    local place = 0
    while true do
      local entries = redis.call('LRANGE', KEYS[2], place, place + 99)
      if #entries == 0 then
        return false
      end
      for _, entry in ipairs(entries) do
        local channel, token = string.match(entry, '^(%S+) (%S+) ')
        local silent, forgotten = false, false
        if channel and token ~= own then
          silent, forgotten = is_silent(entry, channel, heard, now, taken_back)
        end
        if silent and not forgotten then
          place = place + 1
        else
          redis.call('LREM', KEYS[2], 1, entry)
          if not silent then
            return entry
          end
        end
      end
    end
  end

  -- Write the lock for a waiter that must claim it within `due` ms; returns the fence. The key
  -- outlives that time, so that a caller who looks then sees whose turn it was.
  local function offer(name, token, lease, record, channel, due, now)
    local mark = string.format(
      '{"unclaimed":"%.0f %.0f %s",', math.floor(now / 1000) + due, lease, channel)
    return give(name, token, math.max(lease, due + 2000), mark .. string.sub(record, 2), now)
  end

  -- Hand the lock off to the longest waiting whose process is awake, and send that process the
  -- grant. If no one receives it the waiter is dead and dropped. The new holder must claim the
  -- lock. `own` is the token of the caller, who needs no message; `taken_back` tells that the lock
  -- was granted to another, who did not claim it. Returns false if no waiter was left; the caller
  -- may then overwrite or delete the lock. A queue that was emptied is not touched again: in a
  -- cluster that is moving the slot a key that does not exist is taken to be on the other node, and
  -- the script would fail halfway.
  local function hand_off(name, own, taken_back)
    local left = redis.call('LLEN', KEYS[2])
    if left == 0 then
      return false
    end
    local before = redis.call('PTTL', KEYS[1])
    local now = clock()
    local now_ms = math.floor(now / 1000)
    local heard = read_heard(taken_back) -- usually nil
    for i = 1, left do
      local entry = next_awake(own, heard, now_ms, taken_back)
      if not entry then
        return false
      end
      local channel, token, lease, record = string.match(entry, '^(%S+) (%S+) (%d+) (.*)$')
      lease = tonumber(lease)
      -- Another program may have put anything there; a lease is between 1 ms and 100 years.
      if token and lease > 0 and lease < 4e12 then
        local due, received = token == own and lease or math.min(lease, CLAIM), 1
        if token == own then
          give(name, token, lease, record, now)
        else
          local fence = offer(name, token, lease, record, channel, due, now)
          received = tell(
            channel, string.format('grant %s %.0f %.0f %.0f %s', token, fence, lease, now_ms, name))
          if not received then
            due = tonumber(string.match(channel, '^@poll:(%d+)') or CLAIM_UNTOLD)
            offer(name, token, lease, record, channel, due, now)
          end
        end
        if received ~= 0 then
          if i < left then
            tell_of_end(name, KEYS[2], before, due)
          end
          return true
        end
      end
    end
    return false
  end

  -- Take the lock back from a process that did not claim it in time, because it does not run or
  -- does not receive: all its waiters are passed over until it is heard. The caller then hands the
  -- lock off. `held` is the lock's value, `caller` the caller's channel or '', `now` the clock in
  -- ms.
  local function take_back(name, held, caller, now)
    local _, lease, channel, record, holder = unclaimed(held)
    if caller ~= '' then
      note(caller, now)
    end
    -- A poller that does not claim its lock, though its process has looked since, is gone. To put
    -- it back would delay the others again and again.
    local polled = tonumber(string.match(channel, '^@poll:(%d+)'))
    if polled then
      local heard_at = read_heard(true)[channel] or 0
      if channel == caller or heard_at > now - math.max(LOOKED, polled / 2) then
        return
      end
    end
    note(channel, -now)
    -- The waiter keeps its place, unless it is dead, or gone from a process that still runs.
    if channel ~= caller and tell(channel, 'look ' .. name) ~= 0 then
      redis.call('LPUSH', KEYS[2], string.format('%s %s %.0f %s', channel, holder, lease, record))
      redis.call('PEXPIRE', KEYS[2], 10000) -- the caller may not wait, and then does not set it
    end
  end

  return {
    claim = claim,
    hand_off = hand_off,
    hear = hear,
    take_back = take_back,
    tell_of_end = tell_of_end,
  }
end
