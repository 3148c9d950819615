-- Take the lock from the holder that was shown, and give it to the longest waiting.
-- KEYS[1] to KEYS[5]: see common.lua; KEYS[6] the audit.
-- ARGV[1] name, ARGV[2] the digest of the token that must still hold it, ARGV[3] how many entries
-- the audit keeps; the rest is the entry of this: fields, each followed by its value.
-- Returns 1, or nil when the lock is free or held by another token.
local held = redis.call('GET', KEYS[1])
if not held then
  return false
end
local token = string.match(held, '^[^ ]*')
if string.sub(redis.sha1hex(token), 1, 16) ~= ARGV[2] then
  return false
end
-- First of all: what can't be written into the audit is not done.
redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[3], '*', unpack(ARGV, 4))
if not contended().hand_over(ARGV[1], '') then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
end
return 1
