-- Request an extra run of an entry, as soon as possible.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The entry (hash).
-- KEYS[3]  The quarantine (hash), or the schedule key if the Redis user has no access to the
--          quarantine; see aside.lua.
-- ARGV[1]  The id of the run.
-- ARGV[2]  The maximum number of waiting runs.
-- ARGV[3]  The wake-up channel.
--
-- Returns 1 if the run waits, 0 if the entry does not exist, -1 if the entry is quarantined, -2 if
-- too many runs wait already, -3 if the entry key is not a hash, -4 if the entry is not in the
-- schedule. A second request with the same id has no effect.
--
-- The field `trigger` of an entry is a JSON string of the waiting runs, separated by spaces. A
-- waiting run has the form <id>:<when requested, UNIX seconds>. While a beat holds the claim of an
-- entry, this script does not change the score, because the completion of the claim reads `trigger`
-- and makes the entry due.

-- include: aside

-- include: read_claim

-- include: text_in

-- include: make_due

local schedule, entry, quarantine = KEYS[1], KEYS[2], KEYS[3]
local id, most, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

local found = redis.pcall('HMGET', entry, 'definition', 'claim', 'trigger')
local member = redis.call('ZSCORE', schedule, entry)
local refused = refusal(found, quarantine, entry, member)
if refused then
  return refused
end
local waiting, count = found[3] and text_in(found[3]) or '', 0
for run in string.gmatch(waiting, '%S+') do
  local other = string.match(run, '^([^:]+):.')
  if other == id then
    return 1
  end
  count = count + (other and not string.find(other, '/', 1, true) and 1 or 0)
end
if count >= most then
  return -2
end
redis.call('HSET', entry, 'trigger',
  '"' .. waiting .. (waiting ~= '' and ' ' or '') .. id .. ':' .. now .. '"')
make_due(schedule, entry, found[2], now, channel)
return 1
