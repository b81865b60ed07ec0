-- Replace the waiting runs of an entry, to add or cancel a backfill.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The entry (hash).
-- KEYS[3]  The quarantine (hash), or the schedule key if the Redis user has no access to the
--          quarantine; see aside.lua.
-- ARGV[1]  The expected value of the field `trigger`, without quotes; '' for no value.
-- ARGV[2]  The expected value of the field `meta`.
-- ARGV[3]  The new value of the field `trigger`, without quotes; '' to delete the field.
-- ARGV[4]  The wake-up channel.
--
-- Returns 1 if the waiting runs are replaced, 0 if the entry does not exist, -1 if the entry is
-- quarantined, -2 if `trigger` or `meta` differs from the expected value, -3 if the entry key is
-- not a hash, -4 if runs are requested and the entry is not in the schedule. If the caller repeats a
-- successful call, the script returns 1 and changes nothing.
--
-- In the field `trigger`, a backfill has the form <id>/<rate>/<sent>/<total>/<span>/<remaining
-- parts of the span>:<when the next run is due>. A span has the form <since>~<until>, in UNIX
-- seconds; several spans are separated by commas. A finished backfill has the word `done` in place
-- of the time of its next run. Finished backfills stay in the field `trigger`, so that a repeated
-- request does not send their runs again.

-- include: aside

-- include: read_claim

-- include: text_in

-- include: make_due

local schedule, entry, quarantine = KEYS[1], KEYS[2], KEYS[3]
local expected, expected_meta, waiting, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

local found = redis.pcall('HMGET', entry, 'definition', 'claim', 'trigger', 'meta')
local member = redis.call('ZSCORE', schedule, entry)
local refused = refusal(found, quarantine, entry, member or waiting == '')
if refused then
  return refused
end
local stored = found[3] and text_in(found[3]) or ''
if stored == waiting then
  return 1
end
if stored ~= expected or (found[4] or '') ~= expected_meta then
  return -2
end
if waiting == '' then
  redis.call('HDEL', entry, 'trigger')
else
  redis.call('HSET', entry, 'trigger', '"' .. waiting .. '"')
end
make_due(schedule, entry, found[2], now, channel)
return 1
