-- Delete entries, including their history and the claims of beats.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash), or the schedule key if the user may not access it, see aside.lua
-- ARGV     entry keys (hashes)
--
-- Returns how many entries existed, as a hash or as a member of the schedule.

-- include: aside

local removed = 0
for _, entry in ipairs(ARGV) do
  local members = redis.call('ZREM', KEYS[1], entry)
  local hashes = redis.call('DEL', entry)
  aside('HDEL', KEYS[2], entry)
  removed = removed + ((members + hashes > 0) and 1 or 0)
end
return removed
