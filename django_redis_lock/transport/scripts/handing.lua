local seen_key = KEYS[5]
-- include parked
-- Return the first waiter: its process, its entry, and for how many ms it counts as seen. Return the
-- process alone for parked messages, nil if none waits, false if more have to be checked. A process that is
-- not seen leaves the queue until its next heartbeat: sooner after a lock was taken back, as all of a host
-- may have vanished together.
local function first_waiter(name, taken_back)
  for _ = 1, BATCH do
    local process = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    if not process then
      return nil
    elseif is_outbox(process) then
      return process
    end
    local seen = process ~= 'quorum' and was_seen(process, taken_back and BEAT or WAITER_TIMEOUT)
    local entry = seen and redis.pcall('ZRANGE', key_of('waiters', process, name), 0, 0)[1]
    if entry then
      return process, entry, seen
    end
    redis.call('ZREM', KEYS[2], process)
  end
  return false
end

-- Grant the lock beside its `holders`; returns the fence. The keys outlive the `due` ms within which a
-- process has to claim it, if it has to, so that a caller who asks then sees whose turn it was.
local function grant(name, token, lease, record, now, holders, process, due)
  local now_ms, stays, claim = math.floor(now / 1000), lease, nil
  if due then
    claim, stays = string.format('%.0f:%.0f:%s', now_ms + due, lease, process), math.max(lease, due + 2000)
  end
  if not shares(record) then
    return give(name, token, stays, record, now, claim)
  elseif holders == 0 then
    redis.call('DEL', KEYS[1], KEYS[7]) -- a former holder had it alone
  end
  return give_permit(name, token, due or lease, record, now, holders, claim, now_ms + stays)
end

-- Grant the lock to a waiter, which is `own` if it asks itself. Returns in how many ms its lease ends
-- or its claim is due; nil if it is gone.
local function grant_waiter(name, own, process, token, lease, record, now, holders)
  local now_ms = math.floor(now / 1000)
  if token == own then
    grant(name, token, lease, record, now, holders)
    return lease
  end
  local due = math.max(math.min(lease, CLAIM), 4 * interval_of(process))
  local fence = grant(name, token, lease, record, now, holders, process, due)
  local message = string.format('grant %s %s %.0f %.0f %s', token, fence, lease, now_ms, name)
  if send_grant(process, message) then
    return due
  end
  silence(process)
  if shares(record) then
    remove_permit(name, digest_of(token))
  end
end

-- Offer the lock to the message that is next in an outbox, beside its `holders`. Returns in how many ms
-- its lease ends, and whether others may have the lock beside it; 0 if another waiter has to be asked,
-- -1 if none is ahead of who asks; nil if this one has to wait.
local to_publish = 0
local function offer_to_message(name, process, now, holders)
  local turn, token, entry = first_parked(name, process)
  local lease, record = string.match(entry or '', '^%x+ (%d+) (.*)$')
  if turn == nil then
    poll_within(name, POLL_OTHERS, math.floor(now / 1000))
    return nil
  elseif not turn then
    note_turn(name, process)
    return redis.call('ZSCORE', KEYS[2], process) == 'inf' and -1 or 0
  elseif redis.call('HEXISTS', parked_key(process, ':' .. name), token) == 0 then
    leave_backlog(name, process, turn, token)
    return 0
  elseif not lease then -- its entry was deleted; it returns without the lock
    put_into_outbox(name, process, token, 0)
    leave_backlog(name, process, turn, token)
    return 0
  end
  record = with_limit(name, process, turn, token, record)
  local most = limit_of(name, record)
  if most == 0 and redis.pcall('HEXISTS', KEYS[6], name) ~= 1 then
    redis.call('ZADD', parked_key(process, 'turns:' .. name), '+inf', turn) -- until it has another limit
    note_turn(name, process)
    return 0
  elseif holders >= (most or 1) or (holders > 0 and redis.call('ZSCORE', KEYS[1], digest_of(token))) then
    return redis.call('ZSCORE', KEYS[2], process) == 'inf' and -1 or nil
  end
  local fence = grant(name, token, tonumber(lease), record, now, holders)
  put_into_outbox(name, process, token, math.min(fence / 1000, math.floor(now / 1000) + 1))
  leave_backlog(name, process, turn, token, next_fence(now))
  to_publish = to_publish + 1
  return tonumber(lease), most ~= nil
end

-- Hand the lock off to the longest waiting whose process is seen, or to as many as may have it together
-- with its `holders`, and send them their grants, which they must claim. `own` is the token of the caller,
-- who needs no message; `taken_back` says that another did not claim the lock. A parked message that is
-- granted it comes into the outbox, and counts in `to_publish`. Returns how many have the lock then,
-- infinity for one alone, and whether others wait for them. If no one has it, the caller may overwrite
-- or delete it. If much is left to do, a heartbeat does it.
local function hand_off(name, own, taken_back, holders)
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return holders
  end
  local now, soonest, left = clock(), math.huge, BATCH
  local function wait()
    note_sooner(name, KEYS[2], -1, soonest, math.floor(now / 1000))
    return holders, true
  end
  while left > 0 do
    left = left - 1
    local process, entry, seen = first_waiter(name, taken_back)
    if not process then
      left = process == nil and -1 or 0
    elseif not entry then
      local due, shared = offer_to_message(name, process, now, holders)
      if not due then
        return wait()
      elseif due > 0 then
        soonest, holders = math.min(soonest, due), shared and holders + 1 or math.huge
      end
      left = due < 0 and -1 or left
    else
      local id, lease, record = string.match(entry, '^(%x+) (%d+) (.*)$')
      lease = tonumber(lease or 0)
      -- Not another program's data: a lease is 1 ms to 100 years.
      local token = id and lease > 0 and lease < 4e12
        and redis.pcall('HGET', key_of('tokens', process, name), id)
      local most = record and limit_of(name, record)
      if type(token) ~= 'string' or (most and holders > 0 and redis.call('ZSCORE', KEYS[1], id)) then
        remove_waiter(name, process, entry)
      elseif holders >= (most or 1) then
        if seen < math.huge then -- others may have it beside the holders once this one is gone
          poll_within(name, seen + 1, math.floor(now / 1000))
        end
        return wait()
      else
        remove_waiter(name, process, entry)
        local due = grant_waiter(name, own, process, token, lease, record, now, holders)
        if due then
          soonest, holders = math.min(soonest, due), most and holders + 1 or math.huge
        end
      end
    end
    left = holders == math.huge and -1 or left
  end
  note_sooner(name, KEYS[2], -1, left == 0 and 0 or soonest, math.floor(now / 1000))
  return holders, left == 0
end
