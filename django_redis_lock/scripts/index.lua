-- Read one page of the names of held locks, the earliest lease end first: a lock that is renewed
-- while the pages are turned moves to a later page, so it is not missed.
-- KEYS[1] the index.
-- ARGV[1] the lease end (ms) to begin at, or '' for now, ARGV[2] how many to pass over there,
-- ARGV[3] page size.
-- Returns {name, lease end, name, lease end, ...}.
local from = ARGV[1]
if from == '' then
  local time = redis.call('TIME')
  from = time[1] * 1000 + math.floor(time[2] / 1000)
end
return redis.call(
  'ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])
