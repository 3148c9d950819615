-- Read the backlogs of a lock.
-- KEYS[1] the processes that wait for it, KEYS[2] when processes were seen; see common.lua.
-- ARGV[1] the name. Returns {process, how many backlogs, {turn, how many wait, ...}, ...}, of each outbox
-- the backlogs whose turn is next. What this user may not read is left out.
local seen_key = KEYS[2]
-- include parked
local answer = {}
for _, process in ipairs(redis.pcall('ZRANGE', KEYS[1], 0, -1)) do -- an error has no items
  local turns, each = parked_key(process, 'turns:' .. ARGV[1]), {}
  local found = is_outbox(process) and redis.pcall('ZRANGE', turns, 0, BATCH - 1) or {err = process}
  for _, turn in ipairs(found) do
    local waiting = redis.pcall('ZCARD', backlog_key(process, turn, ARGV[1]))
    each[#each + 1] = turn
    each[#each + 1] = type(waiting) == 'number' and waiting or 0
  end
  if not found.err then
    answer[#answer + 1] = process
    answer[#answer + 1] = redis.call('ZCARD', turns)
    answer[#answer + 1] = each
  end
end
return answer
