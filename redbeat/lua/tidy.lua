-- Remove what was counted for entries that are gone.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  stats (hash)
-- KEYS[3]  a key that never exists: while a cluster moves the slot, its nodes answer TRYAGAIN
-- ARGV[1]  key prefix
-- ARGV[2]  how many entries there may be for their counts to be kept at all
--
-- Returns how many fields were removed. Those of entries are "<what> <name>", others have no blank.

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
