-- include permits
-- The queue of a lock. Making these functions takes time, so scripts for locks without waiters include
-- them late. docs/reference/keys-and-constants.md has what is in each key, the names of processes, and
-- messages.
-- KEYS[1] the lock, see base.lua; or, if several hold it together, see permits.lua.
-- KEYS[2] the processes that wait for it, each scored by the position of its first waiter.
-- KEYS[3] the index of held locks, scored by the end of their leases (ms).
-- KEYS[4] the last fence. Positions in queues come from it, too: both only rise.
-- KEYS[5] when each waiting process was seen last (ms). One that is not in it is silent.
-- The other keys are derived from KEYS[5]. Who may read queues need not read prefix-tokens, so can't
-- forge a grant. For the waiters that are messages see parked.lua.
-- With redis.pcall another program's data under a key, or a command that this user may not run,
-- does not prevent a grant. A server that is out of memory refuses what takes memory, but only as a
-- script's first write: a write that must not fail is tried again after one that takes none.

-- Milliseconds:
local CLAIM = 1200 -- within which a process must claim the lock that it was granted
local BEAT = 1150 -- within which a process that runs is seen; see waiting.BEAT_EVERY
local WAITER_TIMEOUT = 5000 -- after which one that is not seen waits no more, unless it comes back
local SHOWN = 2900 -- after which it is not shown
local NOTIFY_WITHIN = 1000 -- processes need not know of a lease that ends later: they are seen before
local POLL_OTHERS = 250 -- after which to check again a lock that another program holds
local STAYS = 600000 -- after which the keys of waiters expire, unless refreshed
local BATCH = 64 -- how many entries of anything a script handles

-- Return whether an error says that another program's data is under a key.
local function is_other(answer)
  return string.find(answer.err, 'WRONGTYPE', 1, true) ~= nil
end

local before_seen, tag = string.match(seen_key, '^(.*)%-seen(.*)$')

local function key_of(kind, process, name)
  return table.concat({before_seen .. '-' .. kind .. tag, process, name}, ':')
end

-- Return how many ms pass at most between two polls of a process; 0 for one that is notified.
local function interval_of(process)
  return tonumber(string.match(process, '%.(%d+)$') or 0)
end

-- Return whether what waits are the parked messages of a broker, which have no process.
local function is_outbox(process)
  return string.byte(process) == 64 -- an @
end

-- Return for how many more ms a process counts as seen; false if it is silent: `most` ms have passed from
-- its last heartbeat to the last of any process. So none is silent only because the server did not run.
-- If this user can't read that, all were seen.
local last_seen
local function was_seen(process, most)
  if is_outbox(process) or process == 'quorum' then
    return math.huge
  elseif not last_seen then
    local found = redis.pcall('ZRANGE', seen_key, -1, -1, 'WITHSCORES')
    last_seen = found.err and math.huge or tonumber(found[2] or 0)
  end
  local at = last_seen < math.huge and redis.pcall('ZSCORE', seen_key, process)
  if last_seen == math.huge or type(at) == 'table' then
    return math.huge
  end
  local left = at and at + math.max(most, 4 * interval_of(process)) - last_seen
  return left and left >= 0 and left
end

local function note_seen(process, now)
  redis.pcall('PEXPIRE', seen_key, STAYS)
  if redis.pcall('ZADD', seen_key, now, process) == 1 then
    redis.pcall('PEXPIRE', seen_key, STAYS)
  end
end

-- Return how many wait in the processes that were seen in the last `most` ms, and how many of these
-- are parked messages.
local function count_waiters(queue, name, most)
  local number, parked = 0, 0
  for _, process in ipairs(redis.pcall('ZRANGE', queue, 0, -1)) do -- an error has no items
    local own = was_seen(process, most) and redis.pcall('ZCARD', key_of('waiters', process, name))
    own = type(own) == 'number' and own or 0
    number, parked = number + own, parked + (is_outbox(process) and own or 0)
  end
  return number, parked
end

-- Let a heartbeat check a lock within some ms; returns whether one would have done so later.
local function poll_within(name, ms, now)
  local due = key_of('due')
  if redis.pcall('ZADD', due, 'LT', 'CH', now + ms, name) ~= 1 then
    return false
  end
  local endless = redis.pcall('ZRANGE', due, -1, -1, 'WITHSCORES')[2] == 'inf'
  redis.pcall(unpack(endless and {'PERSIST', due} or {'PEXPIRE', due, STAYS}))
  return true
end

-- Score a process by its first waiter.
local function note_first(name, process)
  local first = redis.call('ZRANGE', key_of('waiters', process, name), 0, 0, 'WITHSCORES')[2]
  if not first then
    redis.call('ZREM', KEYS[2], process)
  elseif redis.call('ZADD', KEYS[2], first, process) == 1 and redis.call('ZCARD', KEYS[2]) == 1 then
    redis.call('PEXPIRE', KEYS[2], STAYS)
  end
end

local function refresh(name, process)
  redis.call('PEXPIRE', key_of('tokens', process, name), STAYS)
  redis.call('PEXPIRE', key_of('waiters', process, name), STAYS)
  if redis.call('PTTL', KEYS[2]) ~= -1 then -- else a message is parked there
    redis.call('PEXPIRE', KEYS[2], STAYS)
  end
end

-- Write a waiter into the queue, with `rest`, "lease record"; returns 1, or 0 if it was there.
local function enter(name, process, token, position, rest)
  local id = digest_of(token)
  local new = redis.call('HSET', key_of('tokens', process, name), id, token)
    + redis.call('ZADD', key_of('waiters', process, name), 'NX', position, id .. ' ' .. rest)
  if new == 0 and redis.call('ZSCORE', KEYS[2], process) then
    return 0
  end
  note_first(name, process)
  refresh(name, process)
  return 1
end

local function remove_waiter(name, process, entry)
  redis.pcall('HDEL', key_of('tokens', process, name), string.match(entry, '^%S*'))
  if redis.call('ZREM', key_of('waiters', process, name), entry) == 1 then
    note_first(name, process)
  end
end

-- Send a message to a process; returns how many received it, false if it can't be sent so.
local function publish(process, message)
  local command = ({c = 'PUBLISH', s = 'SPUBLISH'})[string.match(process, '^([cs])%x+%-%d+$')]
  local receivers = command and redis.pcall(command, key_of('grant', process), message)
  return type(receivers) == 'number' and receivers
end

-- Put a message where a process reads it, at once or with its next heartbeat.
local function push(process, message)
  redis.pcall('RPUSH', key_of('inbox', process), message)
  redis.pcall('PEXPIRE', key_of('inbox', process), STAYS)
end

-- Pass a process over until it is seen again. Then its first waiters come back.
local function silence(process)
  redis.pcall('ZREM', KEYS[2], process)
  redis.pcall('ZREM', seen_key, process)
  push(process, 'lost')
end

-- Send a grant. Returns false if the process is gone: it has no connection, and was not seen lately.
local function send_grant(process, message)
  if (publish(process, message) or 0) == 0 then
    if not was_seen(process, BEAT) then
      return false
    end
    push(process, message)
  end
  return true
end

-- Have a lock checked when a lease ends, in `after` ms, and notify the processes that wait for it,
-- unless they know. Before that it ended in `before` ms, never if that is negative.
local function note_sooner(name, queue, before, after, now)
  if after < 0 or after == math.huge or (before >= 0 and before <= after)
      or redis.pcall('EXISTS', queue) ~= 1 then
    return
  end
  if poll_within(name, after, now) and after < NOTIFY_WITHIN then
    for _, process in ipairs(redis.pcall('ZRANGE', queue, 0, BATCH - 1)) do -- an error has no items
      local message = string.format('due %.0f', after)
      if not publish(process, message) and string.find(process, '^i%x+%-%d+$')
          and was_seen(process, WAITER_TIMEOUT) then
        push(process, message)
      end
    end
  end
end

-- Claim a lock, or the permit with that id if the key `permits` is given. The lease of a process that
-- asks begins now, that of another began with its message. Returns what is left of it in ms, 0 or less
-- if it has ended; nil if it is claimed already.
local function claim(lock, id, hold, now, permits, index, name)
  local left = hold.lease
  if not left then
    return nil
  elseif interval_of(hold.process) == 0 then
    left = math.min(left, hold.due - math.min(left, CLAIM) + left - now)
  end
  local value = write_hold(hold.token, hold.fence, '-', hold.record)
  if permits then
    redis.call('PERSIST', permits)
    redis.call('HSET', permits, id, value)
    redis.call('ZADD', lock, now + left, id)
    redis.pcall('ZADD', index, expire_permits(lock, permits), name)
  elseif left > 0 and redis.pcall('SET', lock, value, 'PX', left).err then
    redis.call('PEXPIRE', lock, left)
    redis.call('SET', lock, value, 'PX', left)
  end
  return left
end
