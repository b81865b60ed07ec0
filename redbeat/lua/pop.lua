-- Remove an entry with its history, as delete.lua does, and return what it was.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash)
-- ARGV[1]  entry key (hash)
--
-- Returns {definition, meta, policy, runtime}, each nil where there is none.

local entry = ARGV[1]
local fields = redis.call('HMGET', entry, 'definition', 'meta', 'policy', 'runtime')
redis.call('ZREM', KEYS[1], entry)
redis.call('DEL', entry)
redis.call('HDEL', KEYS[2], entry)
return fields
