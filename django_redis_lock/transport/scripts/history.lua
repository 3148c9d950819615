-- Read a page of the audit, the newest entry first.
-- KEYS[1] the audit. ARGV[1] a lock's name, or '' for all, ARGV[2] the id before which to begin, or '+'
-- for the end, ARGV[3] how many entries to read.
-- Returns a list of one page {id, {id, {field, value, ...}}, ...}: first the id before which to
-- continue, '' at the end, then the entries. (Several servers or shards give more pages.)
local begin, most = ARGV[2] == '+' and '+' or '(' .. ARGV[2], tonumber(ARGV[3])
local entries = redis.call('XREVRANGE', KEYS[1], begin, '-', 'COUNT', most)
local page = {#entries == most and entries[most][1] or ''}
for _, entry in ipairs(entries) do
  local wanted = ARGV[1] == ''
  for j = 1, #entry[2], 2 do
    wanted = wanted or (entry[2][j] == 'name' and entry[2][j + 1] == ARGV[1])
  end
  if wanted then
    page[#page + 1] = entry
  end
end
return {page}
