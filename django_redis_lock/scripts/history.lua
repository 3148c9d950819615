-- Read the audit, the newest entry first.
-- KEYS[1] the audit.
-- ARGV[1] a lock's name, or '' for all, ARGV[2] how many entries at the most.
-- Returns {{id, {field, value, ...}}, ...}.
local most = tonumber(ARGV[2])
if ARGV[1] == '' then
  return redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', most)
end
local found = {}
for _, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-')) do
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'name' and entry[2][i + 1] == ARGV[1] then
      found[#found + 1] = entry
      break
    end
  end
  if #found == most then
    break
  end
end
return found
