-- include base
-- For the scripts with which one server of a quorum votes. Nothing is handed off here: independent
-- servers could not agree on a waiter.
-- KEYS[1] to KEYS[4] and the waiters: see common.lua. KEYS[5] the mark of this server: its run id, from when on (ms)
-- it votes, and " new" until it has learned the last fence.

-- Leave the waiters, unless `entry` is ''.
local function leave(queue, waiters, entry)
  if entry ~= '' and redis.call('ZREM', waiters, entry) == 1 and redis.call('EXISTS', waiters) == 0 then
    redis.call('DEL', queue)
  end
end

-- Return nothing if this server votes. A server that was restarted or lost its data may have
-- forgotten a lock that still counts elsewhere, and the last fence. It votes once `delay` ms have
-- passed and it has learned that fence. Until then return from when on it can learn it (ms), which
-- also identifies this start, and in how many ms that is.
local function not_voting(mark, now, delay)
  if delay == 0 then
    return
  end
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local known, from, new = string.match(redis.call('GET', mark) or '', '^(%w+) (%d+)(.*)$')
  from = tonumber(from)
  if known ~= run or from - now > delay then
    from, new = now + delay, ' new'
    redis.call('SET', mark, run .. ' ' .. string.format('%.0f', from) .. new)
  end
  if new ~= '' or from > now then
    return from, math.max(0, from - now)
  end
end
