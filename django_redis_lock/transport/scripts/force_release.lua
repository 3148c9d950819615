-- Take the lock from the holder that was shown, and give it to the longest waiting.
-- KEYS[1] to KEYS[5]: see common.lua; KEYS[6] the part of the audit that the entry belongs to.
-- ARGV[1] name, ARGV[2] the digest of the token that must still hold it, ARGV[3] how many entries
-- that part keeps, ARGV[4] 1 where an earlier sending may have arrived, else 0; the rest is the entry
-- of this: fields, each followed by its value.
-- Returns 1, or 2 where the audit did not take the entry; nil when the lock is free or held by
-- another token, unless the entry tells that an earlier sending released it, and is among the last
-- thousand. After an error this sending has released nothing, and written nothing into the audit.
local held = redis.call('GET', KEYS[1])
local token = held and string.match(held, '^[^ ]*')
if not token or string.sub(redis.sha1hex(token), 1, 16) ~= ARGV[2] then
  if ARGV[4] == '1' then
    local ours = table.concat(ARGV, '\0', 5)
    for _, entry in ipairs(redis.call('XREVRANGE', KEYS[6], '+', '-', 'COUNT', 1000)) do
      if table.concat(entry[2], '\0') == ours then
        return 1
      end
    end
  end
  return false
end
-- A full server refuses what takes memory as the first write of a script, and no later one. So the
-- first takes none, and changes nothing: no lock has an empty name. A replica, or a server that can't
-- save, refuses this one.
redis.call('ZREM', KEYS[3], '')
-- What leaves no trace is not done, and what is not done leaves none. So it is found out whether the
-- audit would take the entry, with an id that no entry can have; then the lock is released; and then
-- the entry is written.
local refused = redis.pcall('XADD', KEYS[6], '0-0', 'event', '')
if not string.find(refused.err, 'greater than 0-0', 1, true) then
  return refused
end
redis.call('XREVRANGE', KEYS[6], '+', '-', 'COUNT', 1) -- fails where it is no stream
-- A user who may not hand it over, or another program's data in place of the line, is no reason to
-- leave it with its holder: those who wait find it free when they look.
local known, handed_over = pcall(contended().hand_over, ARGV[1], '')
if not known or not handed_over then
  local deleted = redis.pcall('DEL', KEYS[1])
  if type(deleted) == 'table' and redis.call('GET', KEYS[1]) == held then
    return deleted
  end
  redis.call('ZREM', KEYS[3], ARGV[1])
end
local written = redis.pcall('XADD', KEYS[6], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, 5))
return type(written) == 'table' and 2 or 1
