-- Remove an entry with its history; a claim that is held on it ends with it.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  entry (hash)
-- KEYS[3]  quarantine (hash)
--
-- Returns 1 when there was a hash or a member, else 0.

local members = redis.call('ZREM', KEYS[1], KEYS[2])
local hashes = redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[3], KEYS[2])
return (members + hashes > 0) and 1 or 0
