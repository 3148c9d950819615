-- Put off a message that can't be published now: give its lock to the next, or put it aside.
-- KEYS: see common.lua and permits.lua. ARGV[1] its token, ARGV[2] the name of the lock, ARGV[3] "@" and the
-- id of the outbox, ARGV[4] why, ARGV[5] in how many ms to try again once it has no lock, ARGV[6] how many ms
-- after it failed first that is, ARGV[7] the same for when it is put aside, '' for never; at most 1,000 are.
-- Returns 1 if it failed first now or was put aside, 2 for both, else 0.
-- include leaving
local token, name, process, now = ARGV[1], ARGV[2], ARGV[3], math.floor(clock() / 1000)
local member = token .. ' ' .. name
local outbox, aside = parked_key(process, 'outbox'), parked_key(process, 'aside')
local troubles = parked_key(process, 'troubles')
if not redis.call('ZSCORE', outbox, member) then
  return 0
end
local since = redis.call('HGET', troubles, token)
local new = since and 0 or redis.call('HSET', troubles, token, now)
local failed_for = now - (since or now)
local keeps_lock = failed_for < tonumber(ARGV[6])
redis.call('ZADD', outbox, now + (keeps_lock and 2000 or ARGV[5]), member) -- others may publish it soon
if not keeps_lock then
  local id, held = find_holder(token)
  if id then
    local shared = type(held) == 'table' and remove_permit(name, id)
    serve(name, false, not shared)
  end
end
if ARGV[7] ~= '' and failed_for >= tonumber(ARGV[7]) and redis.call('HLEN', aside) < 1000 then
  local messages = parked_key(process, ':' .. name)
  local text = redis.call('HGET', messages, token) or ''
  redis.call('HSET', aside, member, string.format('%.0f %s\n', now, ARGV[4]) .. text)
  redis.call('ZREM', outbox, member)
  redis.call('HDEL', messages, token)
  redis.call('HDEL', troubles, token)
  return 1 + new
end
return new
