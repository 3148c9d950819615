-- include handing
-- What acquire.lua and acquire_shared.lua do if the lock is held or waited for.
local now, name, process, own = math.floor(moment / 1000), ARGV[4], ARGV[5], digest_of(ARGV[1])
local entry = ARGV[2] .. ' ' .. ARGV[3]
local waiters = key_of('waiters', process, name)

-- Read the hold that counts for the caller: of who has the lock alone, or the caller's own permit.
local held, mine, hold, left
local function read(shared)
  held = redis.pcall('GET', KEYS[1])
  if shared then
    hold, left = read_permit(KEYS[1], KEYS[7], own, now)
    mine, hold = hold ~= nil, hold or {}
  else
    hold = read_hold(held)
    mine = hold.token == ARGV[1]
  end
  return type(held) == 'table'
end

local function is_full()
  local most = tonumber(ARGV[7] or '')
  return most and count_waiters(KEYS[2], name, WAITER_TIMEOUT) >= most
end

-- Park a message; returns the same as join.
local function park()
  local token, turn, id, position, older, left = ARGV[1], ARGV[10], string.sub(ARGV[1], 1, 16), nil, nil, nil
  local ids, turns = parked_key(process, 'ids'), parked_key(process, 'turns:' .. name)
  if ARGV[13] then
    local known, its, of = string.match(redis.call('HGET', ids, ARGV[13]) or '', '^(%S+) (%S+) (.*)$')
    local at = of == name and redis.call('ZSCORE', backlog_key(process, its, name), known)
    older, left, position = at and known, its, its == turn and at
  end
  if not older and is_full() then
    return 0
  end
  -- In a cluster that is moving the slot, what fails is a missing key, so the queue comes last.
  redis.call('ZADD', parked_key(process, 'locks'), now, name)
  redis.call('HSET', parked_key(process, ':' .. name), token, ARGV[9])
  redis.call('HSET', ids, id, table.concat({token, turn, name}, ' '))
  position = position or next_fence(moment)
  redis.call('ZADD', backlog_key(process, turn, name), position, token)
  redis.call('ZADD', waiters, position, own .. ' ' .. entry)
  redis.call('ZADD', turns, 'NX', position, turn)
  local changed = set_parked_limit(name, process, turn, string.sub(token, 33), ARGV[11], ARGV[12])
  if (changed and redis.call('ZCARD', backlog_key(process, turn, name)) > 1)
      or with_limit(name, process, turn, token, ARGV[3]) ~= ARGV[3] then
    poll_within(name, 0, now) -- some of the backlog may have the lock now
  end
  if older then
    put_into_outbox(name, process, older, 0)
    leave_backlog(name, process, left, older)
  end
  note_turn(name, process)
  return 1
end

-- Join the queue, or stay in it. Returns 2 if the caller was in it, 1 if it is now, 0 if it is full;
-- and its position.
local function join(position)
  if is_outbox(process) then
    return park(), 0
  end
  local known = redis.call('ZSCORE', waiters, own .. ' ' .. entry)
  if not known and position == '' and is_full() then
    return 0, 0
  end
  known = known or (position == '' and next_fence(moment) or position)
  return 2 - enter(name, process, ARGV[1], known, entry), known
end

local holders, taken_back, waiting, ttl, kind = 0, false, nil, nil, 0
local position, again = 0, string.find(ARGV[6] or '', '^%d+$')
if process ~= '' and not is_outbox(process) then
  note_seen(process, now)
end
local shared = read(false)
if shared then
  -- include leaving
  holders, taken_back = purge(name, now) -- an error if another program has written it
  shared = read(true)
end
if hold.due and mine then
  ttl = claim(KEYS[1], own, hold, now, shared and KEYS[7], KEYS[3], name)
elseif hold.due and hold.due <= now then
  silence(hold.process)
  held, taken_back = nil, true
end
if again and not mine then
  kind, position = join(ARGV[6]) -- it waited before the waiters that are served now
end
if not held or (shared and not mine) or (ttl and ttl <= 0) then
  -- Free, or the holder's lease ran out, or others share it. Waiters go first.
  holders, waiting = hand_off(name, ARGV[1], taken_back, holders)
  if not waiting and holders < (limit_of(name, ARGV[3]) or 1)
      and (holders == 0 or not redis.call('ZSCORE', KEYS[1], own)) then
    note_sooner(name, KEYS[2], -1, lease, now) -- for backlogs that are closed now
    return granted(grant(name, ARGV[1], lease, ARGV[3], moment, holders), lease, moment)
  elseif holders == 0 then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[3], name)
  end
  shared, ttl = holders < math.huge, nil
  read(shared)
elseif shared then
  hand_off(name, '', taken_back, holders) -- for those that have ended
end

if mine then
  if ttl and not shared then
    redis.call('ZADD', KEYS[3], now + ttl, name)
  elseif ARGV[8] == '1' or ARGV[8] == 'final' then
    local last = redis.pcall('GET', KEYS[4])
    redis.call('SET', KEYS[4], type(last) == 'string' and last or hold.fence)
  end
  ttl = ttl or shared and left or redis.call('PTTL', KEYS[1])
  return string.format('%s %.0f %.0f', hold.fence, ttl, now)
end
local of_other, fence = not shared and not hold.fence, hold.fence
if shared then -- no fence that was given until now is greater
  fence, ttl = redis.pcall('GET', KEYS[4]), first_due(KEYS[1], now)
else
  ttl = hold.due and hold.due - now or redis.call('PTTL', KEYS[1])
end
if process ~= '' and kind == 0 then
  kind, position = join(again and ARGV[6] or '') -- its own lease may just have ended
end
if kind > 0 then
  local soon = of_other and (ttl < 0 and POLL_OTHERS or math.min(ttl, POLL_OTHERS)) or ttl
  poll_within(name, soon < 0 and STAYS / 2 or soon, now)
  soon = not of_other and tonumber(redis.pcall('ZSCORE', key_of('due'), name)) or math.huge
  ttl = soon < math.huge and math.max(soon - now, 0) or ttl -- sooner perhaps, as others know
  if is_outbox(process) then
    if shared and ARGV[13] then
      hand_off(name, '', false, holders) -- others may be next where the older message stood
    end
    return string.format('0 -1 %.0f %.0f', now, kind)
  end
end
-- What looks like a fence may be another program's number, of any length.
if ARGV[8] == 'final' then -- so that the refusal waits for replicas
  redis.pcall('SET', KEYS[4], redis.call('GET', KEYS[4]) or '0')
end
fence = type(fence) == 'string' and string.match(fence, '^%d+$') or '0'
return string.format(
  '-%s %.0f %.0f %.0f %s', string.sub(fence, 1, 20), ttl, now, kind + (of_other and 3 or 0), position)
