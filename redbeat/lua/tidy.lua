-- Remove deleted entries from the stats, from `failing` and from `expected`, and remove entries
-- that no longer fail from `failing`. A call scans only a part of the stats, of `failing` and of
-- `expected`. The script also removes beats that were last seen in the future, because another
-- program must have written that time. Beats that were last seen long ago are removed by claim.lua.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The stats (hash).
-- KEYS[3]  The beats (zset: token -> last seen, UNIX seconds).
-- KEYS[4]  The index `failing` of entries whose run could not be sent (zset: entry key -> when the
--          run was due).
-- KEYS[5]  The index `expected` of entries with `expect_within` (zset), see ended.lua.
-- KEYS[6]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- ARGV[1]  The key prefix.
-- ARGV[2]  The maximum number of entries with counts; in a larger schedule, the counts of all
--          entries are removed.
-- ARGV[3]  The COUNT of the scans.
-- ARGV[4..6] The cursors of `failing`, `expected` and the stats; '' to skip the scan of a key.
--
-- If the Redis user has no access to a key, the caller passes the schedule key in place of this
-- key; see aside.lua.
--
-- Returns {number of fields removed from the stats, next cursors of `failing`, `expected` and the
-- stats}. In the stats, the counts of an entry have field names of the form "<counter> <entry
-- name>". Fields of the stats that have no space in their name are not removed.

local schedule, stats, beats, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local failing, expected, count = KEYS[4], KEYS[5], ARGV[3]

-- A beat that was seen at most LARGEST_STEP seconds in the future is not removed, because the clock
-- of Redis may have been set back.
local LARGEST_STEP = 60

if beats ~= schedule then
  local now = tonumber(redis.call('TIME')[1])
  redis.pcall('ZREMRANGEBYSCORE', beats, string.format('%.0f', now + LARGEST_STEP), '+inf')
end

-- Scans a part of a hash or sorted set. Returns the next cursor ('' after the last part), and a
-- flat list in which each member or field is followed by its score or value.
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
