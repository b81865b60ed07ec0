-- Remove entries with their history; a claim that is held on one ends with it.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash)
-- ARGV     entry keys (hashes)
--
-- Returns how many of them had a hash or a member.

local removed = 0
for _, entry in ipairs(ARGV) do
  local members = redis.call('ZREM', KEYS[1], entry)
  local hashes = redis.call('DEL', entry)
  redis.call('HDEL', KEYS[2], entry)
  removed = removed + ((members + hashes > 0) and 1 or 0)
end
return removed
