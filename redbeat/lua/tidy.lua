-- Remove deleted entries from the stats, from `failing` and from `expected`, and remove entries
-- that no longer fail from `failing`. A call scans a part of each of these three keys. Also remove
-- beats whose "last seen" time is in the future, because another program must have written that
-- time. The script claim.lua removes beats whose "last seen" time is old.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  stats (hash)
-- KEYS[3]  beats (zset: token -> last seen, UNIX seconds). If the Redis user has no access to this
--          key, or to one of the next two keys, the caller passes the schedule key in its place;
--          see aside.lua.
-- KEYS[4]  failing (zset: key of an entry whose run could not be sent -> when that run was due)
-- KEYS[5]  expected (zset, see ended.lua)
-- KEYS[6]  a key that never exists, so that a cluster answers TRYAGAIN while it moves the slot
-- ARGV[1]  key prefix
-- ARGV[2]  maximum number of entries with counts. If the schedule has more entries, the counts of
--          all entries are removed
-- ARGV[3]  COUNT of the scans
-- ARGV[4..6] the cursors of `failing`, `expected` and the stats, '' to skip the scan of a key
--
-- Returns {how many fields were removed from the stats, the next cursors of the three keys}. In the
-- stats, the counts of an entry have field names of the form "<counter> <entry name>". The names of
-- other fields contain no space; these fields are not removed.

local schedule, stats, beats, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local failing, expected, count = KEYS[4], KEYS[5], ARGV[3]

-- A beat that was seen at most this number of seconds in the future is not removed, because the
-- clock of Redis may have been set back since then.
local LARGEST_STEP = 60

if beats ~= schedule then
  local now = tonumber(redis.call('TIME')[1])
  redis.pcall('ZREMRANGEBYSCORE', beats, string.format('%.0f', now + LARGEST_STEP), '+inf')
end

-- Scans a part of a key. Returns the next cursor ('' after the last part), and a flat list in which
-- each member or field is followed by its score or value.
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
