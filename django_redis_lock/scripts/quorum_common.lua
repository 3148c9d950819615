-- Shared by the scripts with which one server of a quorum gives its voice to somebody.
-- KEYS[1] the lock, KEYS[2] its waiters, KEYS[3] the index of held locks, KEYS[4] the last fence,
-- KEYS[5] the mark of this server: its run id, and from when on (ms) it votes.
-- Nothing is handed over here: servers that know nothing of each other could not agree on a waiter.

-- Return for how many ms more this server, at `now` (ms), does not vote. One that was started, or
-- lost its data, since it was last seen may have forgotten a lock that still counts elsewhere.
local function silent(now, delay)
  if delay == 0 then
    return 0
  end
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local known, from = string.match(redis.call('GET', KEYS[5]) or '', '^(%w+) (%d+)$')
  from = tonumber(from)
  if known ~= run or from - now > delay then
    from = now + delay
    redis.call('SET', KEYS[5], run .. ' ' .. string.format('%.0f', from))
  end
  return math.max(0, from - now)
end

-- Write the lock for `token` with a lease of `lease` ms from `now` (microseconds). Its fence is the
-- clock, or `least`, or one more than the last fence, whichever is greatest. Who waits has to look
-- again, so the line begins anew; that also drops the dead.
local function give(now, name, token, lease, record, least)
  local last = tonumber(redis.call('GET', KEYS[4]) or 0)
  local fence = string.format('%.0f', math.max(now, least, last + 1))
  redis.call('SET', KEYS[4], fence)
  redis.call('SET', KEYS[1], token .. ' ' .. fence .. ' ' .. record, 'PX', lease)
  redis.call('ZADD', KEYS[3], math.floor(now / 1000) + lease, name)
  return fence
end
