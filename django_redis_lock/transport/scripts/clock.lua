-- Shared by the scripts that ask for the time; prepended to each of them.

-- Return the server's clock in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
