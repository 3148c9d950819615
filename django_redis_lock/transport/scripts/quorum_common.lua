-- include base
-- For the scripts with which one server of a quorum votes. Such servers can't agree on the next waiter.
-- KEYS[1] the lock, KEYS[2] its queue, KEYS[3] the index of held locks, KEYS[4] the last fence, KEYS[5] the
-- mark of this server: its run id, from when on (ms) it votes, and " new" until it has learned the last
-- fence, KEYS[6] the waiters.

-- Leave the waiters, unless `entry` is ''.
local function leave(entry)
  if entry ~= '' and redis.call('ZREM', KEYS[6], entry) == 1 and redis.call('EXISTS', KEYS[6]) == 0 then
    redis.call('DEL', KEYS[2])
  end
end

-- Let all later fences be greater than one that others know.
local function learn_fence(fence)
  if (tonumber(redis.call('GET', KEYS[4]) or '') or 0) < tonumber(fence) then
    redis.call('SET', KEYS[4], fence)
  end
end

local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end

-- Return nothing if this server votes. One that was restarted or lost its data may have forgotten a lock
-- that still counts elsewhere, and the last fence. It votes once `delay` ms have passed and it has learned
-- that fence. Until then return from when on it can (ms), which identifies this start, and in how many ms.
local function not_voting(now, delay)
  if delay == 0 then
    return
  end
  local run = run_id()
  local known, from, new = string.match(redis.call('GET', KEYS[5]) or '', '^(%w+) (%d+)(.*)$')
  from = tonumber(from)
  if known ~= run or from - now > delay then
    from, new = now + delay, ' new'
    redis.call('SET', KEYS[5], run .. ' ' .. string.format('%.0f', from) .. new)
  end
  if new ~= '' or from > now then
    return from, math.max(0, from - now)
  end
end
