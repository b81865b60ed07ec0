-- Release the quarantined entries that were changed after their quarantine, and make these entries
-- due now.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash)
-- KEYS[3]  a key that never exists, so that a cluster answers TRYAGAIN while it moves the slot
-- ARGV     two values per entry: entry key, and digest at the time of the quarantine (the SHA-1 of
--          "<definition>\n<policy>\n<meta>", or another string if the key was not a hash)
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
