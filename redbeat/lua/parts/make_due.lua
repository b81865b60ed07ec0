-- make_due(schedule, entry, member, claim, now, channel) makes an entry due now, because a run
-- waits. `member` is the score of the entry in the schedule. While a beat holds a claim on an entry
-- of the schedule, the score stays, because the completion of the claim makes the entry due. Read
-- the score before the first write: the read fails if the key of the schedule has another type.
--
-- refusal(found, quarantine, entry) returns why no run of an entry may be requested: -3 if the key is
-- not a hash, 0 if the entry does not exist, -1 if it is quarantined, nil if a run may be requested.
-- `found` is the reply of HMGET, which starts with the definition.
--
-- Needs the functions aside and read_claim.

local function refusal(found, quarantine, entry)
  if found.err then
    return -3
  end
  if not found[1] then
    return 0
  end
  if aside('HEXISTS', quarantine, entry) == 1 then
    return -1
  end
end

local function make_due(schedule, entry, member, claim, now, channel)
  local _, _, expires = read_claim(claim, tonumber(now))
  if member and expires > tonumber(now) then
    return
  end
  redis.call('ZADD', schedule, now, entry)
  -- If the Redis user may not publish, a beat finds the entry at its next tick.
  redis.pcall('PUBLISH', channel, 'due')
end
