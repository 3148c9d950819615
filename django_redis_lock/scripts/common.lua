-- Shared by the scripts that can give the lock to somebody; prepended to each of them.
-- KEYS[1] the lock, KEYS[2] its waiters, KEYS[3] the index of held locks, KEYS[4] the last fence.
-- A waiter is "channel token lease record", the lease in ms; its record also tells since when it
-- waits. Its channel says how it hears of its grant:
--   "@poll:ms"   it looks from time to time; the lock is written for it with a lease of so many ms,
--                within which it has to claim it
--   "@list:key"  its process pops messages from that list, and keeps "key:alive" while it does
--   any other    its process has subscribed to this channel
-- The messages are "grant token fence lease now" to the process of whom the lock is given, and
-- "look name" to the processes that wait for a lock which may come free sooner than they know.
-- The record of a lock that has yet to be claimed begins with {"unclaimed":true.

-- Write the lock for `token` with a lease of `lease` ms from now.
-- Returns the fence and the server's clock, both in microseconds. A fence is the clock, or one
-- more than the last fence where the clock has not passed that.
local function give(name, token, lease, record)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local fence = now
  local last = tonumber(redis.call('GET', KEYS[4]))
  -- Beyond 2^53 there are no whole numbers: whatever is there then, we did not write it.
  if last and last >= now and last < 9007199254740992 then
    fence = last + 1
  end
  local written = string.format('%.0f', fence)
  redis.call('SET', KEYS[4], written)
  redis.call('SET', KEYS[1], token .. ' ' .. written .. ' ' .. record, 'PX', lease)
  redis.call('ZADD', KEYS[3], math.floor(now / 1000) + lease, name)
  return fence, now
end

-- Send a message to a process that waits. Returns how many received it, false where it can't be
-- told: it looks by itself, or this user may not reach its channel or list.
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
  -- In a cluster it has the shard's hash tag where the server knows sharded channels; who receives
  -- it is counted on this server alone.
  local sharded = string.find(channel, '-grant:{%d+}:[^:]*$')
  local receivers = redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
  return type(receivers) == 'number' and receivers
end

-- Tell whoever waits that the lock's lease ends sooner than it did; they look at its end by
-- themselves, and at least every 15 s, so a longer lease is no news to them.
local function tell_of_end(name, queue, before, after)
  if after >= 15000 or (before >= 0 and before <= after) then
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

-- Give the lock to the longest waiting that still listens: the grant is sent to its process, and
-- where nobody receives it the waiter is dead and dropped. Who can't be told has to claim the lock
-- in time: a poller as it said, another by its next look, which comes within 15 s. `own` is the
-- token of the caller, who needs no message. Returns false when nobody was left to take it; what is
-- then under the lock's key is the caller's to overwrite or delete.
-- A list that was emptied is not touched again: in a cluster that moves the slot just then, a key
-- that is not there is taken to be elsewhere, and the script would end half-way.
local function hand_over(name, own)
  local left = redis.call('LLEN', KEYS[2])
  local before = left > 0 and redis.call('PTTL', KEYS[1])
  while left > 0 do
    local entry = redis.call('LPOP', KEYS[2])
    left = left - 1
    local channel, token, lease, record = string.match(entry, '^(%S+) (%S+) (%d+) (.*)$')
    lease = tonumber(lease)
    -- Whatever another program has put there, it is no lease of none or of a hundred years.
    if token and lease > 0 and lease < 4e12 then
      local fence, now = give(name, token, lease, record)
      local received = token == own or tell(channel, string.format(
        'grant %s %.0f %.0f %.0f', token, fence, lease, math.floor(now / 1000)))
      if not received then
        lease = tonumber(string.match(channel, '^@poll:(%d+)$')) or 16000
        give(name, token, lease, '{"unclaimed":true,' .. string.sub(record, 2))
      end
      if received ~= 0 then
        if left > 0 then
          tell_of_end(name, KEYS[2], before, lease)
        end
        return true
      end
    end
  end
  return false
end
