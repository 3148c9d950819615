-- Read one page of the names of held locks, the earliest lease end first: a lock that is renewed
-- while the pages are turned moves to a later page, so it is not missed.
-- KEYS[1] the index.
-- ARGV[1] the lease end (ms) to begin at, or '' for now, ARGV[2] how many to pass over there,
-- ARGV[3] page size.
-- Returns {names, lease ends}, each as one text with a line for each lock: that is read in a
-- hundredth of the time that thousands of replies take. What can be no name is an empty line.
local from = ARGV[1]
if from == '' then
  local time = redis.call('TIME')
  from = time[1] * 1000 + math.floor(time[2] / 1000)
end
local found = redis.call(
  'ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
local names, ends = {}, {}
for i = 1, #found, 2 do
  local name = found[i]
  names[#names + 1] = string.find(name, '\n', 1, true) and '' or name
  ends[#ends + 1] = found[i + 1]
end
return {table.concat(names, '\n'), table.concat(ends, '\n')}
