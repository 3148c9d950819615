-- Read a page of the queue of a lock, without changing anything.
-- KEYS[1] the processes that wait, KEYS[2] when processes were seen; see common.lua. ARGV[1] the name,
-- ARGV[2] the position after which to begin. Returns {now, position, waiter, ...}, the longest waiting
-- first, without those whose process was not seen lately; nothing but now (the server's clock in ms) at
-- the end. A waiter is "process digest lease record".
local seen_key = KEYS[2]
-- include common
local answer, live, found, last = {math.floor(clock() / 1000)}, {}, {}, math.huge
local processes = redis.pcall('ZRANGE', KEYS[1], 0, -1)
last_seen = answer[1] -- the only process that waits may have died
if processes.err then
  return is_other(processes) and answer or processes
end
for _, process in ipairs(processes) do
  live[#live + 1] = was_seen(process, SHOWN) and process or nil
end
-- Of each process the same number is read, so up to the first of their last positions all are known.
local each = math.max(2, math.floor(4 * BATCH / math.max(#live, 1)))
for _, process in ipairs(live) do
  local page = redis.pcall('ZRANGEBYSCORE', key_of('waiters', process, ARGV[1]),
    '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, each)
  for i = 1, #page, 2 do
    found[#found + 1] = {tonumber(page[i + 1]), page[i + 1], process .. ' ' .. string.sub(page[i], 1, 20000)}
  end
  last = #page == 2 * each and math.min(last, tonumber(page[#page])) or last
end
table.sort(found, function(one, other) return one[1] < other[1] end)
for _, each_found in ipairs(found) do
  if each_found[1] <= last then
    answer[#answer + 1] = each_found[2]
    answer[#answer + 1] = each_found[3]
  end
end
return answer
