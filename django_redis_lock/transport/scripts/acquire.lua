-- Take the lock, or join its waiters.
-- KEYS: see common.lua.
-- ARGV[1] token, ARGV[2] lease (ms), ARGV[3] holder record, ARGV[4] name,
-- ARGV[5] the process in which the caller waits (see common.lua), or '' not to wait,
-- ARGV[6] the caller's position in the queue, or '' if it has none yet, ARGV[7] '' or how many may wait,
-- ARGV[8] 1 if it waits for replicas, for a write of its own; final if its last refusal does, too,
-- ARGV[9] to ARGV[13] for a message to be parked (see parked.lua): its text, turn, limit and worker (see
-- set_parked_limit), and the digest of the id of a task whose position it takes, if any;
-- then KEYS[8] has the messages that are parked already.
-- Returns the fence        taken now, with the whole lease, while no one waited
--         "fence ttl now"  the caller's turn, or its lock already: by a grant, or a lost reply
--         "-fence ttl now kind position"  held by another, under that fence, or by others, under no
--                          greater one; kind 0: not waiting, 1: joined just now, 2: waiting since before;
--                          plus 3 if the holder is another program (fence 0), which hands nothing off
--         "0 -1 now kind"  the message is parked; kind as above
-- ttl in ms, -1 for a lease with no expiry; of a lock that is not claimed yet, until its claim is due.
-- now is the server's clock in ms.
-- include base
local lease, moment = tonumber(ARGV[2]), clock()
if ARGV[9] and redis.call('HEXISTS', KEYS[8], ARGV[1]) == 1 then
  return string.format('0 -1 %.0f 2', math.floor(moment / 1000)) -- an earlier sending has parked it
end
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  return granted(give(ARGV[4], ARGV[1], lease, ARGV[3], moment), lease, moment)
end
-- include joining
