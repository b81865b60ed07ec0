-- Remove the counts of deleted entries from the stats.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  stats (hash)
-- KEYS[3]  a key that never exists; it makes a cluster answer TRYAGAIN while it moves the slot
-- ARGV[1]  key prefix
-- ARGV[2]  if the schedule has more entries than this, the counts of all entries are removed
--
-- Returns how many fields were removed. The counts of an entry have field names of the form
-- "<counter> <entry name>". Other fields have no blank and are kept.

local schedule, stats, prefix = KEYS[1], KEYS[2], ARGV[1]

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
