-- Remove entries with their history; a claim that is held on one ends with it.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash); may be the schedule, see aside.lua
-- ARGV     entry keys (hashes)
--
-- Returns how many of them had a hash or a member.

-- include: aside

local removed = 0
for _, entry in ipairs(ARGV) do
  local members = redis.call('ZREM', KEYS[1], entry)
  local hashes = redis.call('DEL', entry)
  aside('HDEL', KEYS[2], entry)
  removed = removed + ((members + hashes > 0) and 1 or 0)
end
return removed
