-- Remove the counts of deleted entries.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  stats (hash)
-- KEYS[3]  a key that never exists: while a cluster moves the slot, its nodes answer TRYAGAIN
-- ARGV[1]  key prefix
-- ARGV[2]  with more entries than this, the counts of all entries are removed
--
-- Returns how many fields were removed. The fields of entries are "<counter> <name>"; other fields
-- have no blank and stay.

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
