-- Add to what is counted of groups of locks.
-- KEYS the hash of each group: by the number of a slot, its counts, each a letter and a number.
-- ARGV[1] the seconds of a slot, ARGV[2] how many slots are kept, ARGV[3] where a count stops, then
-- for each key what to add, as it is written there.
-- Returns 1. Slots that are too old are removed, and the hash goes once they all are.
local seconds, kept, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local slot = math.floor(clock() / 1000000 / seconds)

local function add(counts, text)
  for letter, number in string.gmatch(text, '(%a)(%d+)') do
    counts[letter] = math.min(most, (counts[letter] or 0) + tonumber(number))
  end
end

local function write(counts)
  local parts = {}
  for letter, number in pairs(counts) do
    parts[#parts + 1] = letter .. string.format('%.0f', number)
  end
  table.sort(parts)
  return table.concat(parts)
end

for i, key in ipairs(KEYS) do
  local counts = {}
  local written = redis.call('HGETALL', key)
  for j = 1, #written, 2 do
    local number = tonumber(written[j])
    if number == slot then
      add(counts, written[j + 1])
    elseif not number or number <= slot - kept or number > slot then
      redis.call('HDEL', key, written[j])
    end
  end
  add(counts, ARGV[3 + i])
  redis.call('HSET', key, string.format('%.0f', slot), write(counts))
  redis.call('PEXPIRE', key, (kept + 1) * seconds * 1000)
end
return 1
