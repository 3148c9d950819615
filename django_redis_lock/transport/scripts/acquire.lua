-- Take the lock, or join its waiters.
-- KEYS: see common.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name,
-- ARGV[5] channel on which the caller waits, or '' not to wait,
-- ARGV[6] '' for a caller that has not waited yet; else the server's clock (ms) when it last asked,
-- or 0 if it has not asked regularly for long enough to tell who is gone,
-- ARGV[7] given if the caller then waits for replicas, which requires a write of its own.
-- Returns the fence               taken now, with the whole lease, while no one waited
--         "fence ttl now"         the caller's turn, or its lock already: a grant that crossed,
--                                 or a reply that was lost
--         "-fence ttl now kind"   held by another, under that fence; kind 0: not waiting, 1: joined
--                                 just now, 2: waiting since before; plus 3 if the holder is
--                                 another program (fence 0), which does not tell the waiters when
--                                 it frees the lock
-- ttl in ms, -1 for a lease without end; of a lock that is not claimed yet, until its claim is due.
-- now is the server's clock in ms.
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local now = clock()
  local fence = give(ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], now)
  if fence % 16 == 0 then
    prune(KEYS[3], now)
  end
  return fence
end

local moment = clock()
local now = math.floor(moment / 1000)
redis.pcall('ZADD', KEYS[5], 'XX', now, ARGV[5]) -- a process that calls is not silent
local held = redis.call('GET', KEYS[1])
local holder, fence = string.match(held or '', '^(%S+) (%d+) ')
local due = held and unclaimed_until(held)
local ttl, taken_back
if due and holder == ARGV[1] then
  ttl = contended().claim(KEYS[1], held, now)
elseif due and due <= now then
  contended().take_back(ARGV[4], held, ARGV[5], now)
  taken_back = true
end
if taken_back or not held or (ttl and ttl <= 0) then
  -- Free, or the holder's lease ran out, while others wait: the first of them goes first.
  if not contended().hand_off(ARGV[4], ARGV[1], taken_back) then
    return give(ARGV[4], ARGV[1], tonumber(ARGV[2]), ARGV[3], moment)
  end
  held, ttl = redis.call('GET', KEYS[1]), nil
  holder, fence = string.match(held, '^(%S+) (%d+) ')
  due = unclaimed_until(held)
end

if holder == ARGV[1] then
  if ttl then
    redis.call('ZADD', KEYS[3], now + ttl, ARGV[4])
  elseif ARGV[7] then
    redis.call('SET', KEYS[4], redis.call('GET', KEYS[4]) or fence)
  end
  return string.format('%s %.0f %.0f', fence, ttl or redis.call('PTTL', KEYS[1]), now)
end
