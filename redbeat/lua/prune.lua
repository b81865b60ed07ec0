-- Delete static entries that are no longer in `beat_schedule`.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The names of the static entries (set).
-- KEYS[3]  The quarantine (hash), or the schedule key if the Redis user has no access to the
--          quarantine; see aside.lua.
-- KEYS[4]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[5]  The stats (hash), see look_for_loss.lua; or the schedule key.
-- KEYS[6]  The lock (string), omitted if locking is off.
-- ARGV[1]  The lock token of the caller.
-- ARGV[2..] Two values per entry: the entry name and the entry key.
--
-- Returns how many static entries were deleted. If the caller no longer holds the lock, the script
-- returns -1 and deletes nothing.

local schedule, statics, quarantine, stats, lock = KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6]

-- include: aside

-- include: look_for_loss

if lock and redis.call('GET', lock) ~= ARGV[1] then
  return -1
end
local removed, gone = 0, 0
for i = 2, #ARGV, 2 do
  local name, key = ARGV[i], ARGV[i + 1]
  if redis.call('SREM', statics, name) == 1 then
    redis.call('DEL', key)
    gone = gone + redis.call('ZREM', schedule, key)
    aside('HDEL', quarantine, key)
    removed = removed + 1
  end
end
lower_note(gone)
return removed
