-- include permits
-- The queue of a lock. Making these functions takes time, so scripts that are called for locks
-- without waiters include them after what those need.
--
-- KEYS[1] the lock: "token fence record"; or, if several hold it together, see permits.lua.
-- KEYS[2] its waiters, the longest waiting first: "channel token lease record", with the lease in
--         ms. The record includes since when it waits. The channel is how it learns of its grant:
--           "@poll:ms:id"  it polls, and has so many ms to claim the lock
--           "@list:key"    its process pops messages from that list, and sets "key:alive" meanwhile
--           "@park:key"    it is the message of a task, kept in key until it gets the lock
--           any other      its process is subscribed to this channel
-- KEYS[3] the index of held locks, scored by the end of their leases (ms).
-- KEYS[4] the last fence.
-- KEYS[5] when each waiting process was last seen: its channel, scored by the server's clock in ms.
--         A negative score tells since when it is silent: it did not claim a lock in time.
-- KEYS[8] if the caller may wait: the names of the queues, scored by when they expire (ms).
--
-- The messages are "grant token fence lease now name" to the process that is granted the lock, and
-- "look name" to the processes that wait for a lock that may come free sooner than they know.
--
-- Parked messages are kept in these, one set for each broker:
-- key::name   the messages that wait for a lock, or are to be published, by the token of their waiter
-- key:outbox  those to be published, each as "token name", scored by the ms at which that is due
-- key:locks   the names of locks that they wait for, scored by the ms at which a worker looks again
-- A parked message is never gone. It needs not claim its lock, of which the lease begins at once.
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

-- Return the key that keeps the message of a parked waiter; nil for a channel of another kind.
local function parked_in(channel)
  return string.match(channel, '^@park:(.*)$')
end

-- Send a message to a waiting process. Returns how many received it; false if that is not known,
-- because the process polls or none waits, or because this user may not reach its channel or list.
local function notify(channel, message)
  local kind, rest = string.match(channel, '^@(%l+):(.*)$')
  if kind == 'poll' or kind == 'park' then
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

-- Notify the waiters that a lease ends sooner than before. They poll by themselves when one ends.
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

-- Return a function that tells whether a waiter is gone: nothing was seen of its process for `limit`
-- ms, or longer for a slow poller. Nobody is gone if `seen` (KEYS[5]) can't be read, or is not used.
local function gone_for(limit, seen, now)
  local number, scores = redis.pcall('ZCARD', seen), {}
  local known = type(number) == 'number' and number > 0
  return function(entry)
    local channel = string.match(entry, '^%S+')
    if not known or not channel or parked_in(channel) then
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
