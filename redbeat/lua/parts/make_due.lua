-- make_due(schedule, entry, claim, now, channel) makes an entry due now, because a triggered run or
-- a backfill waits. While a beat holds a claim on the entry, make_due() does not change the score,
-- because the completion of the claim makes the entry due. An entry that is not in the schedule
-- stays outside.
--
-- refusal(found, quarantine, entry, member) returns -3 if the entry key is not a hash, 0 if the
-- entry does not exist, -1 if the entry is quarantined, -4 if the entry is not in the schedule, and
-- nil if a run of the entry can be requested. `found` is the reply of an HMGET that reads the
-- definition first. `member` is the score of the entry in the schedule, or false if the entry has
-- no score. The caller must read the score before its first write, because the read of the score
-- fails if the schedule key has the wrong type.
--
-- refusal() and make_due() need the functions aside and read_claim.

local function refusal(found, quarantine, entry, member)
  if found.err then
    return -3
  end
  if not found[1] then
    return 0
  end
  if aside('HEXISTS', quarantine, entry) == 1 then
    return -1
  end
  return not member and -4 or nil
end

local function make_due(schedule, entry, claim, now, channel)
  local _, _, expires = read_claim(claim, tonumber(now))
  if expires > tonumber(now) then
    return
  end
  redis.call('ZADD', schedule, 'XX', now, entry)
  -- An error of PUBLISH is ignored, because the Redis user may have no right to publish. A beat
  -- that receives no message finds the due entry at its next tick.
  redis.pcall('PUBLISH', channel, 'due')
end
