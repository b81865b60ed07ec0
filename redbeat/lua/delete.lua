-- Remove entries with their history, and the claims that beats hold on them.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash); may be the schedule, see aside.lua
-- ARGV     entry keys (hashes)
--
-- Returns how many entries had a hash or were members of the schedule.

-- include: aside

local removed = 0
for _, entry in ipairs(ARGV) do
  local members = redis.call('ZREM', KEYS[1], entry)
  local hashes = redis.call('DEL', entry)
  aside('HDEL', KEYS[2], entry)
  removed = removed + ((members + hashes > 0) and 1 or 0)
end
return removed
