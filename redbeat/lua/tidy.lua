-- Remove the counts of deleted entries from the stats, and these entries from `failing` and `expected`.
-- Remove entries that fail no longer from `failing`, and beats that were seen in the future. Another
-- program wrote these beats; all other old beats are removed by claim.lua.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  stats (hash)
-- KEYS[3]  beats (zset: token -> last seen, UNIX seconds); this key and the next two are the schedule
--          key if the Redis user may not access them, see aside.lua
-- KEYS[4]  failing (zset: entry key -> when the run was due that could not be sent)
-- KEYS[5]  expected (zset, see ended.lua)
-- KEYS[6]  a key that never exists; it makes a cluster answer TRYAGAIN while it moves the slot
-- ARGV[1]  key prefix
-- ARGV[2]  if the schedule has more entries than this, the counts of all entries are removed
--
-- Returns how many fields were removed. The counts of an entry have field names of the form
-- "<counter> <entry name>". Other fields have no blank and are kept.

local schedule, stats, beats, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local failing, expected = KEYS[4], KEYS[5]

-- include: aside

-- Seconds by which the clock of Redis may have gone back since a beat was seen.
local LARGEST_STEP = 60

if beats ~= schedule then
  local now = tonumber(redis.call('TIME')[1])
  redis.pcall('ZREMRANGEBYSCORE', beats, string.format('%.0f', now + LARGEST_STEP), '+inf')
end

local late = aside('ZRANGE', failing, 0, -1)
for _, key in ipairs(late ~= 0 and late or {}) do
  local field = redis.pcall('HGET', key, 'failing')
  if type(field) ~= 'string' then
    redis.call('ZREM', failing, key)
  end
end

local noted = expected ~= schedule and redis.pcall('ZRANGE', expected, 0, -1) or {}
for _, key in ipairs(noted) do
  if not redis.call('ZSCORE', schedule, key) then
    redis.call('ZREM', expected, key)
  end
end

local keep = redis.call('ZCARD', schedule) <= tonumber(ARGV[2])
local found = redis.pcall('HGETALL', stats)
if found.err then
  return 0
end
local removed = 0
for at = 1, #found, 2 do
  local name = string.match(found[at], '^%S+ (.*)$')
  if name and not (keep and redis.call('ZSCORE', schedule, prefix .. name)) then
    removed = removed + redis.call('HDEL', stats, found[at])
  end
end
return removed
