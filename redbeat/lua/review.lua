-- Release the quarantined entries that were changed after their quarantine, and make these entries
-- due now.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The quarantine (hash).
-- KEYS[3]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- ARGV     Two values per entry: the entry key, and the digest of the entry at the time of the
--          quarantine. The digest of an entry is the SHA-1 of "<definition>\n<policy>\n<meta>", or
--          another string if the key was not a hash.
--
-- Returns the keys that were released.

-- include: sha1hex

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))
local released = {}
for i = 1, #ARGV, 2 do
  local key, digest = ARGV[i], ARGV[i + 1]
  local found = redis.pcall('HMGET', key, 'definition', 'policy', 'meta')
  if not found.err then
    local text = table.concat({found[1] or '', found[2] or '', found[3] or ''}, '\n')
    if sha1hex(text) ~= digest then
      redis.call('HDEL', KEYS[2], key)
      redis.call('ZADD', KEYS[1], 'XX', now, key)
      released[#released + 1] = key
    end
  end
end
return released
