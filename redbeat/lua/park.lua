-- Quarantine entries that cannot be read. A quarantined entry is kept in Redis but is never due.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The quarantine (hash: entry key -> JSON of reason, since, digest), or the schedule key
--          if the Redis user has no access to the quarantine; see aside.lua.
-- KEYS[3]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- ARGV     Three values per entry: the entry key, the claim id ('' if the key is not a hash), and
--          the note (JSON).
--
-- Returns the keys that were quarantined. If the caller no longer holds the claim of an entry, the
-- entry is not changed. If an entry was changed after the claim, it becomes due now and is not
-- quarantined.

-- include: sha1hex

-- include: marks

-- include: aside

-- include: read_claim

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

-- Returns 1 to quarantine the entry, 0 to leave the entry alone, -1 to make the entry due now.
local function decide(key, id)
  if id == '' then
    return redis.call('TYPE', key).ok ~= 'hash' and 1 or -1
  end
  local found = redis.pcall('HMGET', key, 'claim', 'definition', 'policy', 'meta')
  if found.err or not found[1] then
    return 0
  end
  if read_claim(found[1]) ~= id then
    return 0
  end
  redis.call('HDEL', key, 'claim', 'failing')
  return made_of(found[1], found[2] or '', found[3], found[4]) and 1 or -1
end

local parked = {}
for i = 1, #ARGV, 3 do
  local key, id, note = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local decision = decide(key, id)
  if decision == 1 and redis.call('ZADD', KEYS[1], 'XX', 'CH', -1, key) == 1 then
    aside('HSET', KEYS[2], key, note)
    parked[#parked + 1] = key
  elseif decision == -1 then
    redis.call('ZADD', KEYS[1], 'XX', now, key)
  end
end
return parked
