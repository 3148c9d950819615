-- Take the lock from the holder of a token, and hand it off to the longest waiting.
-- KEYS[1] to KEYS[7]: see common.lua and permits.lua; KEYS[8] the audit.
-- ARGV[1] name, ARGV[2] the digest of the token that must still hold the lock, ARGV[3] how many entries the
-- audit retains, ARGV[4] 1 if an earlier sending may have arrived, else 0; the rest is the audit entry:
-- fields, each followed by its value; without any none is written.
-- Returns 1, or 2 if the entry could not be written; nil if the lock is free or held by another token,
-- unless the entry is among the last 200: an earlier sending released the lock. After an error this
-- sending has neither released the lock nor written the entry.
-- include leaving
local id, held = find_holder(nil, ARGV[2])
if not id then
  if ARGV[4] == '1' then
    local ours = table.concat(ARGV, '\0', 5)
    for _, entry in ipairs(redis.call('XREVRANGE', KEYS[8], '+', '-', 'COUNT', 200)) do
      if table.concat(entry[2], '\0') == ours then
        return 1
      end
    end
  end
  return false
end
-- The first write takes no memory (see common.lua) and changes nothing; a replica refuses it.
redis.call('ZREM', KEYS[3], '')
-- No release without an entry, nor the reverse: an impossible id shows whether one can be written.
local refused = redis.pcall('XADD', KEYS[8], '0-0', 'event', '')
if not string.find(refused.err, 'greater than 0-0', 1, true) then
  return refused
end
redis.call('XREVRANGE', KEYS[8], '+', '-', 'COUNT', 1) -- fails where it is no stream
-- It is released even if it can't be handed off: the waiters find it free with a heartbeat.
local shared = type(held) == 'table' and remove_permit(ARGV[1], id)
if not pcall(serve, ARGV[1], false, not shared) and not shared then
  local deleted = redis.pcall('DEL', KEYS[1])
  if type(deleted) == 'table' and redis.call('GET', KEYS[1]) == held then
    return deleted
  end
  redis.call('ZREM', KEYS[3], ARGV[1])
end
local written = redis.pcall('XADD', KEYS[8], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, 5))
return type(written) == 'table' and 2 or 1
