-- make_due(schedule, entry, member, claim, now, channel) makes an entry due now, because a
-- triggered run or a backfill waits. `member` is the score of the entry in the schedule, false if
-- the entry has no score. While a beat holds a claim on the entry, make_due() does not change the
-- score, because the completion of the claim makes the entry due. The caller must read the score
-- before its first write, because this read fails if the key of the schedule has another type.
--
-- refusal(found, quarantine, entry) returns why no run of an entry can be requested: -3 if the key
-- is not a hash, 0 if the entry does not exist, -1 if the entry is quarantined. refusal() returns
-- nil if a run can be requested. `found` is the reply of HMGET, which starts with the definition.
--
-- refusal() and make_due() need the functions aside and read_claim.

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
  -- An error is ignored, because the Redis user may have no right to publish. Without a message, a
  -- beat finds the entry at its next tick.
  redis.pcall('PUBLISH', channel, 'due')
end
