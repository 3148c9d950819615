-- include common
-- Parked messages, each known by its token: the digests of its task's id (16 digits), of the attempt
-- (16), and of the task's name. They wait in backlogs, one for each turn ("=" and a text), and all
-- those of a broker stand in the queue of a lock as "@" and the id of its outbox, where the next turn
-- is. A backlog whose turn it was goes to the end of the queue. docs/reference/keys-and-constants.md has the keys.
-- A message is never gone, and need not claim its lock, of which the lease begins at once.

local function parked_key(process, rest)
  return key_of('parked', string.sub(process, 2), rest)
end

local function backlog_key(process, turn, name)
  return parked_key(process, table.concat({'backlog', turn, name}, ':'))
end

-- Score an outbox by its next turn.
local function note_turn(name, process)
  local turn = redis.call('ZRANGE', parked_key(process, 'turns:' .. name), 0, 0, 'WITHSCORES')[2]
  if turn then
    redis.call('ZADD', KEYS[2], turn, process)
    redis.call('PERSIST', KEYS[2])
    redis.call('ZADD', key_of('due'), 'NX', '+inf', name)
    redis.call('PERSIST', key_of('due'))
  elseif redis.call('ZREM', KEYS[2], process) == 1 then
    if redis.call('PEXPIRE', KEYS[2], STAYS) == 0 then
      redis.call('ZREM', key_of('due'), name)
    else -- others wait, whose processes let the queue stay
      poll_within(name, STAYS / 2, math.floor(clock() / 1000))
    end
  end
end

-- Return what the queue shows of a message at a position; nil if that was deleted.
local function shown(name, process, token, position)
  local id = digest_of(token)
  local found = redis.call('ZRANGEBYSCORE', key_of('waiters', process, name), position, position, 'LIMIT', 0, 4)
  for _, entry in ipairs(found) do
    if string.sub(entry, 1, #id) == id then
      return entry
    end
  end
end

-- Take a message from its backlog, whose next turn is at a position if that is given.
local function leave_backlog(name, process, turn, token, next_turn)
  local backlog, ids = backlog_key(process, turn, name), parked_key(process, 'ids')
  local turns, id = parked_key(process, 'turns:' .. name), string.sub(token, 1, 16)
  local position = redis.call('ZSCORE', backlog, token)
  local entry = position and shown(name, process, token, position)
  if entry then
    redis.call('ZREM', key_of('waiters', process, name), entry)
  end
  redis.call('ZREM', backlog, token)
  if string.sub(redis.call('HGET', ids, id) or '', 1, #token) == token then
    redis.call('HDEL', ids, id)
  end
  if redis.call('EXISTS', backlog) == 0 then
    redis.call('ZREM', turns, turn)
  elseif next_turn then
    redis.call('ZADD', turns, next_turn, turn)
  end
  note_turn(name, process)
end

-- Let a message be published from a time (ms) on; it has the lock, or none.
local function put_into_outbox(name, process, token, at)
  redis.call('ZADD', parked_key(process, 'outbox'), string.format('%.3f', at), token .. ' ' .. name)
end

-- Return the message that is next: its turn, token and entry. False if none has a turn, nil if this
-- user may not know, or not while a cluster moves the slot: a worker that polls hands the lock off.
local function first_parked(name, process)
  local turns = redis.pcall('ZRANGE', parked_key(process, 'turns:' .. name), 0, 0, 'WITHSCORES')
  local turn, at = turns[1], turns[2]
  local first = turn and redis.pcall('ZRANGE', backlog_key(process, turn, name), 0, 0, 'WITHSCORES') or turns
  local others = redis.pcall('EXISTS', parked_key(process, 'outbox'), parked_key(process, ':' .. name),
    parked_key(process, 'ids'), key_of('waiters', process, name))
  if type(others) == 'table' or (first.err and not is_other(first)) then
    return nil
  elseif not first[1] or first == turns or (at == 'inf' and redis.pcall('HEXISTS', KEYS[6], name) ~= 1) then
    if turn and not first[1] then
      redis.call('ZREM', parked_key(process, 'turns:' .. name), turn)
    end
    return false
  end
  return turn, first[1], shown(name, process, first[1], first[2])
end

-- Return the record of a message with the limit that its backlog has now, of the task that it is.
local function with_limit(name, process, turn, token, record)
  local set = redis.pcall('HGET', parked_key(process, 'limits:' .. name), string.sub(token, 33) .. turn)
  local limit = type(set) == 'string' and string.match(set, '^[%d-]+')
  return limit and (string.gsub(record, '^%S*', limit, 1)) or record
end

-- Set the limit of a task in a backlog, "-" for a lock of its own, unless a worker that began later did
-- so. `worker` is how many ms ago this one began, and its id. Returns whether the limit is another one.
local function set_parked_limit(name, process, turn, owner, limit, worker)
  local key, field = parked_key(process, 'limits:' .. name), owner .. turn
  local age, id = string.match(worker, '^(%d+) (%S+)$')
  local began = math.floor(clock() / 1000) - age
  local known, at, by = string.match(redis.call('HGET', key, field) or '', '^(%S+) (%d+) (%S+)$')
  if known and (known == limit and by == id or by ~= id and began < tonumber(at)) then
    return false
  end
  redis.call('HSET', key, field, string.format('%s %.0f %s', limit, began, id))
  local turns = parked_key(process, 'turns:' .. name)
  if limit ~= '0' and redis.call('ZSCORE', turns, turn) == 'inf' then
    redis.call('ZADD', turns, next_fence(clock()), turn)
    note_turn(name, process)
  end
  return known ~= limit
end
