-- Shared by the scripts that add to the index of held locks; prepended to each of them.

-- Remove up to 32 locks that have expired by `now` (microseconds) from the index. One acquisition
-- in sixteen, chosen by the clock, does this: that removes twice as many as are added, so the index
-- stays as small as the number of held locks, and no call ever pays for more.
local function prune(index, now)
  local expired = redis.call(
    'ZRANGEBYSCORE', index, '-inf', math.floor(now / 1000) - 1, 'LIMIT', 0, 32)
  if #expired > 0 then
    redis.call('ZREM', index, unpack(expired))
  end
end
