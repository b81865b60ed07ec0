-- Delete an entry and its history, as delete.lua does, and return the fields of the entry.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash), or the schedule key if the user may not access it, see aside.lua
-- ARGV[1]  entry key (hash)
--
-- Returns {definition, meta, policy, runtime, identity}, nil for a missing field.

-- include: aside

local entry = ARGV[1]
local fields = redis.call('HMGET', entry, 'definition', 'meta', 'policy', 'runtime', 'identity')
redis.call('ZREM', KEYS[1], entry)
redis.call('DEL', entry)
aside('HDEL', KEYS[2], entry)
return fields
