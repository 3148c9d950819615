-- Shared by the scripts that act for a holder; prepended to each of them.

-- Return whether a token holds a lock, given the value of the lock, or false if it is free.
local function holds(token, held)
  return held and string.sub(held, 1, #token + 1) == token .. ' '
end
