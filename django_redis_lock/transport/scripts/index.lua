-- Read a page of the names of held locks, the earliest lease end first. A lock that is renewed
-- between two pages moves to a later page, so it is not missed.
-- KEYS[1] the index; or the locks that are waited for, of which those in the index, KEYS[2], are left out.
-- ARGV[1] the lease end (ms) to begin at, or '' for now or for all, ARGV[2] the member (in hexadecimal digits)
-- of that lease end to begin after, or '' to begin with the first, ARGV[3] page size.
-- Returns {names, lease ends, last member}, the first two each as one text with a line for each
-- lock, which is read much faster than as many items. An empty line stands for a member that can't
-- be a name, and for one that is left out.
-- include base
local from, after, found = ARGV[1], ARGV[2], nil
if after == '' then
  from = from == '' and (KEYS[2] and '-inf' or math.floor(clock() / 1000)) or from
  found = redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
else
  -- The members of one score are in the order of their bytes, so the position after a member is known
  -- even if it was removed. A binary search finds it in about twenty steps among a million.
  from = tonumber(from)
  after = string.gsub(after, '..', function(digits) return string.char(tonumber(digits, 16)) end)
  local function is_after(member, score)
    if score ~= from then return score > from end
    for i = 1, math.min(#member, #after) do  -- '<' would go by the server's locale
      local difference = string.byte(member, i) - string.byte(after, i)
      if difference ~= 0 then return difference > 0 end
    end
    return #member > #after
  end
  local low, high = 0, redis.call('ZCARD', KEYS[1])
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = redis.call('ZRANGE', KEYS[1], middle, middle, 'WITHSCORES')
    if is_after(entry[1], tonumber(entry[2])) then high = middle else low = middle + 1 end
  end
  found = redis.call('ZRANGE', KEYS[1], low, low + ARGV[3] - 1, 'WITHSCORES')
end
local names, ends, now = {}, {}, math.floor(clock() / 1000)
for i = 1, #found, 2 do
  local name = found[i]
  local held = KEYS[2] and tonumber(redis.call('ZSCORE', KEYS[2], name) or 0) >= now
  names[#names + 1] = (held or string.find(name, '\n', 1, true)) and '' or name
  ends[#ends + 1] = found[i + 1]
end
return {table.concat(names, '\n'), table.concat(ends, '\n'), found[#found - 1] or ''}
