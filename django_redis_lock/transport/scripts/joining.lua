-- include handing
-- What acquire.lua and acquire_shared.lua do if the lock is held or waited for.
local now, name, process, own = math.floor(moment / 1000), ARGV[4], ARGV[5], digest_of(ARGV[1])
local entry = ARGV[2] .. ' ' .. ARGV[3]
local waiters, tokens = key_of('waiters', process, name), key_of('tokens', process, name)

-- Read the hold that counts for the caller: of who has the lock alone, or the caller's own permit.
local held, mine, rest, fence, due, left, _
local function read(shared)
  held = redis.pcall('GET', KEYS[1])
  if shared then
    rest, left = read_permit(KEYS[1], KEYS[7], own, now)
    mine = rest ~= nil
  else
    local token
    token, rest = string.match(type(held) == 'string' and held or '', '^(%S+) (%d+ .*)$')
    mine = token == ARGV[1]
  end
  fence = string.match(rest or '', '^%d+')
  due = tonumber(string.match(rest or '', '^%d+ {"unclaimed":"(%d+) '))
  return type(held) == 'table'
end

-- Return whether as many wait as the caller accepts.
local function is_full()
  local most = tonumber(ARGV[7] or '')
  return most and count_waiters(KEYS[2], name, GONE) >= most
end

-- Park a message; returns the same as join. If the start of a token is given as ARGV[10], it takes the
-- place of the message that has this token, which then is to be published.
local function park(outbox)
  local parked, place, older = key_of('parked', outbox), nil, nil
  local all = ARGV[10] and redis.call('ZRANGE', waiters, 0, -1, 'WITHSCORES') or {}
  for i = 1, #all, 2 do
    local token = redis.call('HGET', tokens, string.match(all[i], '^%x+')) or ''
    if not place and string.sub(token, 1, #ARGV[10]) == ARGV[10] then
      older, place = {all[i], token}, all[i + 1]
    end
  end
  if not place and is_full() then
    return 0
  end
  -- In a cluster that is moving the slot, what fails is a missing key, so the queue comes last.
  redis.call('ZADD', parked .. ':locks', now, name)
  if older then
    redis.call('ZADD', parked .. ':outbox', 0, older[2] .. ' ' .. name)
  end
  redis.call('HSET', parked .. '::' .. name, ARGV[1], ARGV[9])
  if older then
    remove_waiter(name, process, older[1])
  end
  enter(name, process, ARGV[1], place or next_fence(moment), entry)
  for _, key in ipairs({KEYS[2], waiters, tokens}) do
    redis.call('PERSIST', key)
  end
  redis.call('ZADD', key_of('due'), 'NX', '+inf', name)
  redis.call('PERSIST', key_of('due'))
  return 1
end

-- Join the queue, or stay in it. Returns 2 if the caller was in it, 1 if it is now, 0 if it is full;
-- and its position.
local function join(position)
  if outbox_of(process) then
    return park(outbox_of(process)), 0
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
if process ~= '' and not outbox_of(process) then
  note_heard(process, now)
end
local shared = read(false)
if shared then
  -- include leaving
  holders, taken_back = purge(name, now) -- an error if another program has written it
  shared = read(true)
end
if due and mine then
  ttl = claim(KEYS[1], shared and own or ARGV[1], rest, now, shared and KEYS[7], KEYS[3], name)
elseif due and due <= now then
  -- include leaving
  take_back(rest)
  held, taken_back = nil, true
end
if again and not mine then
  kind, position = join(ARGV[6]) -- it waited before those who are served now
end
if not held or (shared and not mine) or (ttl and ttl <= 0) then
  -- Free, or the holder's lease ran out, or others share it. Those who wait go first.
  holders, waiting = hand_off(name, ARGV[1], taken_back, holders)
  if not waiting and holders < (limit_of(name, ARGV[3]) or 1)
      and (holders == 0 or not redis.call('ZSCORE', KEYS[1], own)) then
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
    redis.call('SET', KEYS[4], type(last) == 'string' and last or fence)
  end
  ttl = ttl or shared and left or redis.call('PTTL', KEYS[1])
  return string.format('%s %.0f %.0f', fence, ttl, now)
end
local foreign = not shared and not fence
if shared then -- no fence that was given until now is greater
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
  fence, ttl = redis.pcall('GET', KEYS[4]), first and first ~= 'inf' and math.max(first - now, 0) or -1
else
  ttl = due and due - now or redis.call('PTTL', KEYS[1])
end
if process ~= '' and kind == 0 then
  kind, position = join(again and ARGV[6] or '') -- its own lease may just have ended
end
if kind > 0 and not outbox_of(process) then
  local soon = foreign and (ttl < 0 and FOREIGN or math.min(ttl, FOREIGN)) or ttl
  look_within(name, soon < 0 and STAYS / 2 or soon, now)
elseif kind > 0 then
  return string.format('0 -1 %.0f %.0f', now, kind)
end
-- What looks like a fence may be another program's number, of any length.
if ARGV[8] == 'final' then -- so that the refusal waits for replicas
  redis.pcall('SET', KEYS[4], redis.call('GET', KEYS[4]) or '0')
end
fence = type(fence) == 'string' and string.match(fence, '^%d+$') or '0'
return string.format(
  '-%s %.0f %.0f %.0f %s', string.sub(fence, 1, 20), ttl, now, kind + (foreign and 3 or 0), position)
