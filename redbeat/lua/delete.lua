-- Delete entries with their run histories and claims.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The quarantine (hash), or the schedule key if the Redis user has no access to the
--          quarantine; see aside.lua.
-- KEYS[3]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[4]  The stats (hash), see look_for_loss.lua; or the schedule key.
-- ARGV[1]  For a single entry, the expected definition, a line feed and the expected policy; '' to
--          delete the entries without a check.
-- ARGV[2..] The entry keys (hashes).
--
-- Returns how many of the entries existed, as a hash or as a member of the schedule. If the stored
-- definition or policy differs from the expected value, the script returns -1 and deletes nothing.
-- If the caller deletes a single entry that does not exist, the script returns 0, so that a
-- repeated call does not return -1.

local schedule, quarantine, stats = KEYS[1], KEYS[2], KEYS[4]

-- include: aside

-- include: look_for_loss

if ARGV[1] ~= '' then
  local stored = redis.call('HMGET', ARGV[2], 'definition', 'policy')
  if stored[1] and stored[1] .. '\n' .. (stored[2] or '') ~= ARGV[1] then
    return -1
  end
end

local removed, gone = 0, 0
for at = 2, #ARGV do
  local entry = ARGV[at]
  local members = redis.call('ZREM', schedule, entry)
  local hashes = redis.call('DEL', entry)
  aside('HDEL', quarantine, entry)
  gone = gone + members
  removed = removed + ((members + hashes > 0) and 1 or 0)
end
lower_note(gone)
return removed
