-- Note that a process waits; do for the locks that are waited for what their ends ask for; and return
-- what the process has to know.
-- KEYS: see attending.lua. ARGV[1] the process, then for some of the locks for which it waits: the name,
-- and the digest of its last waiter.
-- Returns {"now next", names, message, ...}: the server's clock in ms; in how many ms the next lock has to
-- be checked, -1 if none; the names, a line each, in whose queues the last waiter is not; and messages
-- that the process has not received.
-- include attending
local AHEAD = 900 -- ms before their time that locks are checked: their leases may have been renewed
local FORGOTTEN = 60000 -- ms after which a process that was not seen is forgotten
local process, now = ARGV[1], math.floor(clock() / 1000)
local inbox = key_of('inbox', process)

-- Return whether the last waiter of this process is in the queue; an error for another program's data.
local function is_known(name, id)
  turn_to(name)
  local tokens, waiters = key_of('tokens', process, name), key_of('waiters', process, name)
  if redis.call('EXISTS', KEYS[1]) == 0 or not redis.call('ZSCORE', due, name) then
    attend(name, now)
  end
  if redis.call('HEXISTS', tokens, id) == 0
      or redis.call('HLEN', tokens) ~= redis.call('ZCARD', waiters) then
    return false
  elseif not redis.call('ZSCORE', KEYS[2], process) then
    note_first(name, process)
    poll_within(name, 0, now) -- nothing was noted while the queue was lost
  end
  refresh(name, process)
  return true
end

for _, range in ipairs({{'-inf', now - FORGOTTEN}, {now + NOTIFY_WITHIN, '+inf'}}) do -- the clock was set back
  for _, each in ipairs(redis.pcall('ZRANGEBYSCORE', KEYS[5], range[1], range[2], 'LIMIT', 0, BATCH)) do
    redis.pcall('ZREM', KEYS[5], each)
  end
end
note_seen(process, now)

local lost = {}
for i = 2, #ARGV, 2 do
  local ok, known = pcall(is_known, ARGV[i], ARGV[i + 1])
  if not (ok and known) then
    lost[#lost + 1] = ARGV[i]
  end
end
local soon = attend_due(now, AHEAD)
local messages = redis.pcall('LRANGE', inbox, 0, BATCH - 1)
if #messages > 0 then
  redis.call('LTRIM', inbox, #messages, -1)
  soon = redis.call('EXISTS', inbox) == 1 and 0 or soon
end
return {string.format('%.0f %.0f', now, soon), table.concat(lost, '\n'), unpack(messages)}
