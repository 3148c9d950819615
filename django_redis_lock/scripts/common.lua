-- Shared by the scripts that can give the lock to somebody; prepended to each of them.
-- KEYS[1] the lock, KEYS[2] its waiters, KEYS[3] the index of held locks, KEYS[4] the last fence.
-- A waiter is "channel token lease record", the lease in ms; its record also tells since when it
-- waits.
-- Published are "grant token fence lease now" to the process of whom the lock is given, and
-- "look name" to the processes that wait for a lock which may come free sooner than they know.

-- Tell a process. In a cluster its channel has the shard's hash tag where the server knows sharded
-- channels. Returns how many received it, on this server.
local function publish(channel, message)
  if string.find(channel, '-grant:{%d+}:[^:]*$') then
    return redis.call('SPUBLISH', channel, message)
  end
  return redis.call('PUBLISH', channel, message)
end

-- Write the lock for `token` with a lease of `lease` ms from now.
-- Returns the fence and the server's clock, both in microseconds. A fence is the clock, or one
-- more than the last fence where the clock has not passed that.
local function give(name, token, lease, record)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local fence = now
  local last = tonumber(redis.call('GET', KEYS[4]))
  if last and last >= now then
    fence = last + 1
  end
  local written = string.format('%.0f', fence)
  redis.call('SET', KEYS[4], written)
  redis.call('SET', KEYS[1], token .. ' ' .. written .. ' ' .. record, 'PX', lease)
  redis.call('ZADD', KEYS[3], math.floor(now / 1000) + lease, name)
  return fence, now
end

-- Tell whoever waits that the lock's lease ends sooner than it did; they look at its end by
-- themselves, and at least every 15 s, so a longer lease is no news to them.
local function tell_of_end(name, queue, before, after)
  if after >= 15000 or (before >= 0 and before <= after) then
    return
  end
  local told = {}
  for _, entry in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    local channel = string.match(entry, '^%S+')
    if channel and not told[channel] then
      told[channel] = true
      publish(channel, 'look ' .. name)
    end
  end
end

-- Give the lock to the longest waiting that still listens: the grant is published to the channel
-- of its process, and where nobody receives it the waiter is dead and dropped. `own` is the token
-- of the caller, who needs no message. Returns false when nobody was left to take it; what is then
-- under the lock's key is the caller's to overwrite or delete.
-- A list that was emptied is not touched again: in a cluster that moves the slot just then, a key
-- that is not there is taken to be elsewhere, and the script would end half-way.
local function hand_over(name, own)
  local left = redis.call('LLEN', KEYS[2])
  local before = left > 0 and redis.call('PTTL', KEYS[1])
  while left > 0 do
    local entry = redis.call('LPOP', KEYS[2])
    left = left - 1
    local channel, token, lease, record = string.match(entry, '^(%S+) (%S+) (%d+) (.*)$')
    if token then
      local fence, now = give(name, token, tonumber(lease), record)
      if token == own or publish(channel, string.format(
          'grant %s %.0f %s %.0f', token, fence, lease, math.floor(now / 1000))) > 0 then
        if left > 0 then
          tell_of_end(name, KEYS[2], before, tonumber(lease))
        end
        return true
      end
    end
  end
  return false
end
