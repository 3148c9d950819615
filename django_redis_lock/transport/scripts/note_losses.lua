-- Write lost leases into the audit.
-- KEYS[1] the part of the audit that they belong to.
-- ARGV[1] how many entries it keeps, ARGV[2] 1 if an earlier sending may have arrived, else 0; then
-- for each loss the digest of its token, the number of items in its entry, and these: fields, each
-- followed by its value.
-- Returns how many were written. Those that another sending wrote are not written again, unless a
-- thousand others have followed them; a hundred, if none may have arrived before. Then it is this
-- one that came late, after a later one.
local known = {}
local looked_at = ARGV[2] == '1' and 1000 or 100
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', looked_at)) do
  local values = {}
  for i = 1, #entry[2], 2 do
    values[entry[2][i]] = entry[2][i + 1]
  end
  if values.event == 'lost' and values.token_id then
    known[values.token_id] = true
  end
end
local written = 0
local i = 3
while i < #ARGV do
  local last = i + 1 + tonumber(ARGV[i + 1])
  if not known[ARGV[i]] then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, i + 2, last))
    written = written + 1
  end
  i = last + 1
end
return written
