-- Ask for a run beside the schedule: as soon as a beat can.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  entry (hash)
-- KEYS[3]  quarantine (hash); may be the schedule, see aside.lua
-- ARGV[1]  id of the run
-- ARGV[2]  how many runs may wait at most
-- ARGV[3]  wake-up channel
--
-- Returns 1 when it is noted, 0 when there is no such entry, -1 when it is quarantined, -2 when too
-- many wait already, -3 when the key is not a hash. The same id twice counts once.
--
-- The field `trigger` of an entry: the runs that wait, <id>:<when it was asked for, UNIX seconds>
-- each, separated by spaces, in quotes: a JSON text. While a claim is held the score stays: the completion sees the field.

-- include: aside
-- include: read_claim
-- include: text_in

local schedule, entry, quarantine = KEYS[1], KEYS[2], KEYS[3]
local id, most, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

local found = redis.pcall('HMGET', entry, 'definition', 'claim', 'trigger')
if found.err then
  return -3
end
if not found[1] then
  return 0
end
if aside('HEXISTS', quarantine, entry) == 1 then
  return -1
end
local member = redis.call('ZSCORE', schedule, entry)
local waiting, count = found[3] and text_in(found[3]) or '', 0
for other in string.gmatch(waiting, '(%S+):%S+') do
  if other == id then
    return 1
  end
  count = count + 1
end
if count >= most then
  return -2
end
redis.call('HSET', entry, 'trigger',
  '"' .. waiting .. (waiting ~= '' and ' ' or '') .. id .. ':' .. now .. '"')

local _, _, expires = read_claim(found[2], tonumber(now))
if not (member and expires > tonumber(now)) then
  redis.call('ZADD', schedule, now, entry)
  -- A user may lack the right to publish; the beat then sees the entry in its next turn.
  redis.pcall('PUBLISH', channel, 'due')
end
return 1
