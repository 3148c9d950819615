-- Shared by the scripts that act on a holder they know by the digest of its token; prepended to
-- each of them.

-- Return whether the token with a digest holds a lock, given the value of the lock, or false if it
-- is free.
local function is_held_by_digest(digest, held)
  return held and string.sub(redis.sha1hex(string.match(held, '^[^ ]*')), 1, 16) == digest
end
