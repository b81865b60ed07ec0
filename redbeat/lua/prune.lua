-- Remove static entries that left `beat_schedule`.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  statics (set of names)
-- KEYS[3]  quarantine (hash); may be the schedule, see aside.lua
-- KEYS[4]  a key that never exists: while a cluster moves the slot, its nodes answer TRYAGAIN
-- KEYS[5]  lock (string), left out if locking is off
-- ARGV[1]  lock token of the caller
-- ARGV[2..] two values per entry: name, entry key
--
-- Returns -1 if the caller no longer leads (nothing is removed), else how many static entries were
-- removed.

-- include: aside

local schedule, statics, quarantine, lock = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
if lock and redis.call('GET', lock) ~= ARGV[1] then
  return -1
end
local removed = 0
for i = 2, #ARGV, 2 do
  local name, key = ARGV[i], ARGV[i + 1]
  if redis.call('SREM', statics, name) == 1 then
    redis.call('DEL', key)
    redis.call('ZREM', schedule, key)
    aside('HDEL', quarantine, key)
    removed = removed + 1
  end
end
return removed
