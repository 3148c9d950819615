-- Reserve one unit of a product.
-- KEYS[1]: a hash. "free" is the number of units that nobody has reserved. Every other field is a
--          reservation, with the server's time in milliseconds at which it runs out.
-- ARGV[1]: the reservation
-- ARGV[2]: the milliseconds for which it lasts
-- Returns {1}: reserved;
--         {0, ...}: nothing is free; with the reservations that have run out, if any;
--         {-1}: the units are not counted yet.
local free = tonumber(redis.call("HGET", KEYS[1], "free"))
if not free then
  return {-1}
end
if redis.call("HEXISTS", KEYS[1], ARGV[1]) == 1 then
  return {1} -- this call was sent twice, because the first answer was lost
end
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if free > 0 then
  redis.call("HINCRBY", KEYS[1], "free", -1)
  redis.call("HSET", KEYS[1], ARGV[1], string.format("%.0f", now + ARGV[2]))
  return {1}
end
local found = {0}
local fields = redis.call("HGETALL", KEYS[1])
for at = 1, #fields, 2 do
  if fields[at] ~= "free" and tonumber(fields[at + 1]) <= now then
    table.insert(found, fields[at])
  end
end
return found
