-- Delete an entry and its history, as delete.lua does, and return the fields of the entry.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The quarantine (hash), or the schedule key if the Redis user has no access to the
--          quarantine; see aside.lua.
-- KEYS[3]  The copy of the deleted fields (hash), or the schedule key for no copy. If the caller
--          repeats a call whose reply was lost, with the same key for the copy, the script returns
--          the copied fields and deletes nothing.
-- KEYS[4]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[5]  The stats (hash), see look_for_loss.lua; or the schedule key.
-- ARGV[1]  The entry key (hash).
--
-- Returns {definition, meta, policy, runtime, identity}, with nil for each missing field.

local schedule, quarantine, kept, stats, entry = KEYS[1], KEYS[2], KEYS[3], KEYS[5], ARGV[1]

-- include: aside

-- include: look_for_loss

local NAMES = {'definition', 'meta', 'policy', 'runtime', 'identity'}
-- The number of seconds after which Redis deletes the copy.
local REMEMBERED = 60

local earlier = aside('HMGET', kept, unpack(NAMES))
if type(earlier) == 'table' and earlier[1] then
  return earlier
end
local fields = redis.call('HMGET', entry, unpack(NAMES))
lower_note(redis.call('ZREM', schedule, entry))
redis.call('DEL', entry)
aside('HDEL', quarantine, entry)
if fields[1] and kept ~= schedule then
  local copy = {}
  for at, name in ipairs(NAMES) do
    copy[2 * at - 1], copy[2 * at] = name, fields[at] or ''
  end
  -- An error while the copy is written is ignored, because the script must not fail after the entry
  -- is deleted. If the Redis user has no right to write the copy, the script makes no copy.
  redis.pcall('HSET', kept, unpack(copy))
  if redis.pcall('EXPIRE', kept, REMEMBERED) ~= 1 then
    redis.pcall('DEL', kept)
  end
end
return fields
