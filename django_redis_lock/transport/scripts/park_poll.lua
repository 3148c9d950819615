-- Do for the parked messages of a broker what heartbeats do for other waiters, and take on those that
-- are to be published.
-- KEYS: see attending.lua. ARGV[1] "@" and the id of the outbox, ARGV[2] how many messages to take on (0:
-- change nothing), ARGV[3] in how many ms they have to be published, or another caller does it, ARGV[4] how
-- many of its locks to pass over. Of those that come then some are mended and read; none if it is negative.
-- Returns {{member of the outbox, message, ...}, in how many ms to poll again (-1 if nothing is parked),
-- {{name, {turn, first token, its limit}, ...}, ...}}; for a limit see set_parked_limit.
-- include attending
local SOME = 16
local process, now = ARGV[1], math.floor(clock() / 1000)
local outbox, aside = parked_key(process, 'outbox'), parked_key(process, 'aside')
local messages, locks = {}, {}

-- Return whether what a program wrote can be UTF-8.
local function is_text(bytes)
  local rest = string.gsub(bytes, '[\240-\244][\128-\191][\128-\191][\128-\191]', '')
  rest = string.gsub(string.gsub(rest, '[\224-\239][\128-\191][\128-\191]', ''), '[\194-\223][\128-\191]', '')
  return not string.find(rest, '[\128-\255]')
end

local function put_aside(key, member, reason)
  redis.call('HSET', aside, member, string.format('%.0f %s\n', now, reason))
  redis.call('ZREM', key, member)
end

-- Return for which turn a message waits, and its position; that of another attempt of its task is not known.
local function find_position(name, token)
  local entry = redis.call('HGET', parked_key(process, 'ids'), string.sub(token, 1, 16)) or ''
  local turn = string.match(entry, '^' .. token .. ' (%S+)')
  local turns = turn and {turn} or redis.call('ZRANGE', parked_key(process, 'turns:' .. name), 0, BATCH - 1)
  for _, each in ipairs(turns) do
    local position = redis.call('ZSCORE', backlog_key(process, each, name), token)
    if position then
      return each, position
    end
  end
  return turn
end

-- Mend what was deleted of the backlogs of a lock; return some of them.
local function read_lock(name)
  turn_to(name)
  local texts, turns, found = parked_key(process, ':' .. name), parked_key(process, 'turns:' .. name), {name}
  local stored = redis.call('HLEN', texts)
  if stored == 0 then
    redis.call('ZREM', parked_key(process, 'locks'), name)
    redis.call('DEL', parked_key(process, 'limits:' .. name))
  elseif stored ~= redis.call('ZCARD', key_of('waiters', process, name)) then
    for _, token in ipairs(redis.call('HRANDFIELD', texts, SOME)) do
      local turn, position = find_position(name, token)
      if not (position and shown(name, process, token, position))
          and not redis.call('ZSCORE', outbox, token .. ' ' .. name) then
        put_into_outbox(name, process, token, now)
        if turn then
          leave_backlog(name, process, turn, token)
        end
      elseif turn and redis.call('ZADD', turns, 'NX', next_fence(clock()), turn) == 1 then
        note_turn(name, process)
      end
    end
  end
  if redis.call('EXISTS', turns) == 1 then
    if not (redis.call('ZSCORE', KEYS[2], process) and redis.call('ZSCORE', due, name)) then
      note_turn(name, process)
      poll_within(name, 0, now) -- the queue was deleted, or its due mark has expired
    end
    for _, turn in ipairs(redis.call('ZRANDMEMBER', turns, SOME)) do
      local token = redis.call('ZRANGE', backlog_key(process, turn, name), 0, 0)[1]
      local limits = parked_key(process, 'limits:' .. name)
      local limit = token and redis.call('HGET', limits, string.sub(token, 33) .. turn)
      found[#found + 1] = token and {turn, token, limit or ''}
    end
  end
  return found
end

local names = parked_key(process, 'locks')
local is_empty = redis.call('EXISTS', names) == 0
if not is_empty and tonumber(ARGV[4]) >= 0 then
  for _, name in ipairs(redis.call('ZRANGE', names, ARGV[4], ARGV[4] + SOME - 1)) do
    if is_text(name) then
      local ok, found = pcall(read_lock, name)
      locks[#locks + 1] = ok and found or {name} -- where another program has written
    else
      put_aside(names, name, 'the name of this lock is not UTF-8')
    end
  end
end
local next_due = is_empty and -1 or (ARGV[2] == '0' and 0) or attend_due(now, 0)
for _, each in ipairs(redis.call('ZRANGEBYSCORE', outbox, '-inf', now + 1, 'LIMIT', 0, ARGV[2])) do
  local token, name = string.match(each, '^(%S+) (.+)$')
  local text = token and redis.pcall('HGET', parked_key(process, ':' .. name), token)
  if not (token and is_text(each)) then
    put_aside(outbox, each, 'this is no message of a lock')
  elseif type(text) == 'string' then
    redis.call('ZADD', outbox, now + ARGV[3], each)
    messages[#messages + 1] = each
    messages[#messages + 1] = text
  else
    redis.call('ZREM', outbox, each)
  end
end
local publish_due = first_due(outbox, now)
if publish_due >= 0 and (next_due < 0 or publish_due < next_due) then
  next_due = publish_due
end
return {messages, next_due < 0 and not is_empty and 2000 or next_due, locks}
