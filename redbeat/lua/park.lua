-- Set entries aside that cannot be understood: kept, never due, reported in the quarantine.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash: entry key -> JSON of reason, since, digest); may be the schedule, see
--          aside.lua
-- KEYS[3]  a key that never exists: while a cluster moves the slot, its nodes answer TRYAGAIN
-- ARGV     per entry three values: entry key, claim id ('' when the key is not a hash), note (JSON)
--
-- Returns the keys that were parked. One whose claim is not ours any more is left alone; one whose
-- definition was changed meanwhile is due now instead.

-- include: sha1hex

-- include: marks

-- include: aside

-- include: read_claim

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

-- 1 park, 0 leave alone, -1 look again
local function verdict(key, id)
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
  redis.call('HDEL', key, 'claim')
  return made_of(found[1], found[2] or '', found[3], found[4]) and 1 or -1
end

local parked = {}
for i = 1, #ARGV, 3 do
  local key, id, note = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local found = verdict(key, id)
  if found == 1 and redis.call('ZADD', KEYS[1], 'XX', 'CH', -1, key) == 1 then
    aside('HSET', KEYS[2], key, note)
    parked[#parked + 1] = key
  elseif found == -1 then
    redis.call('ZADD', KEYS[1], 'XX', now, key)
  end
end
return parked
