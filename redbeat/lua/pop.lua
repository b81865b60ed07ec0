-- Remove an entry with its history, as delete.lua does, and return its fields.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash); may be the schedule, see aside.lua
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
