-- Remove deleted entries from the stats, from `failing` and from `expected`, and remove entries
-- that no longer fail from `failing`. A call scans a part of each of these three keys. Also remove
-- beats with a "last seen" time in the future, which another program must have written; claim.lua
-- removes all other old beats.
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
-- ARGV[3]  COUNT of the scans
-- ARGV[4..6] the cursors of `failing`, `expected` and the stats, '' to skip the scan of a key
--
-- Returns {how many fields were removed, the next cursors of the three keys}. The counts of an
-- entry have field names of the form "<counter> <entry name>". Other fields contain no space and
-- are kept.

local schedule, stats, beats, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local failing, expected, count = KEYS[4], KEYS[5], ARGV[3]

-- The clock of Redis may have gone back by this number of seconds since a beat was last seen.
local LARGEST_STEP = 60

if beats ~= schedule then
  local now = tonumber(redis.call('TIME')[1])
  redis.pcall('ZREMRANGEBYSCORE', beats, string.format('%.0f', now + LARGEST_STEP), '+inf')
end

-- Returns the next cursor, '' after the last part, and a list of members or fields, each followed by
-- its score or value.
local function scan(command, key, cursor)
  local reply = key ~= schedule and cursor ~= '' and redis.pcall(command, key, cursor, 'COUNT', count)
  if not reply or reply.err then
    return '', {}
  end
  return reply[1] ~= '0' and reply[1] or '', reply[2]
end

local next_failing, late = scan('ZSCAN', failing, ARGV[4])
for at = 1, #late, 2 do
  local field = redis.pcall('HGET', late[at], 'failing')
  if type(field) ~= 'string' then
    redis.call('ZREM', failing, late[at])
  end
end

local next_expected, noted = scan('ZSCAN', expected, ARGV[5])
for at = 1, #noted, 2 do
  if not redis.call('ZSCORE', schedule, noted[at]) then
    redis.call('ZREM', expected, noted[at])
  end
end

local keep = redis.call('ZCARD', schedule) <= tonumber(ARGV[2])
local next_stats, found = scan('HSCAN', stats, ARGV[6])
local removed = 0
for at = 1, #found, 2 do
  local name = string.match(found[at], '^%S+ (.*)$')
  if name and not (keep and redis.call('ZSCORE', schedule, prefix .. name)) then
    removed = removed + redis.call('HDEL', stats, found[at])
  end
end
return {removed, next_failing, next_expected, next_stats}
