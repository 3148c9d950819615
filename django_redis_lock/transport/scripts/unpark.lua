-- Let parked messages leave the queues of locks without them; they are to be published.
-- KEYS: see attending.lua. ARGV[1] "@" and the id of the outbox, ARGV[2] the name of a lock, or '' for all,
-- then the digests of the ids of some tasks, or none for all tasks of that lock.
-- Returns how many there are; of all tasks of a lock some are done at once, so it is to be called again.
-- include attending
local process, found, now = ARGV[1], 0, math.floor(clock() / 1000)
local function unpark(name, turn, token)
  turn_to(name)
  local position = redis.call('ZSCORE', backlog_key(process, turn, name), token)
  if position then
    put_into_outbox(name, process, token, position / 1000000) -- due, in this order
    leave_backlog(name, process, turn, token)
    poll_within(name, 0, now) -- others who share it may be next
    found = found + 1
  end
end
for i = 3, #ARGV do
  local entry = redis.call('HGET', parked_key(process, 'ids'), ARGV[i]) or ''
  local token, turn, name = string.match(entry, '^(%S+) (%S+) (.*)$')
  if token and (ARGV[2] == '' or ARGV[2] == name) then
    unpark(name, turn, token)
  end
end
local turns = parked_key(process, 'turns:' .. ARGV[2])
for _, turn in ipairs(#ARGV == 2 and redis.call('ZRANGE', turns, 0, BATCH - 1) or {}) do
  for _, token in ipairs(redis.call('ZRANGE', backlog_key(process, turn, ARGV[2]), 0, BATCH - 1 - found)) do
    unpark(ARGV[2], turn, token)
  end
  if found >= BATCH then
    break
  end
end
return found
