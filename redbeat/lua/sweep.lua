-- Find entries that no beat would claim: entry hashes that are missing in the sorted set, and
-- enabled entries that still have the score of disabled entries.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- ARGV[1]  The key prefix.
-- ARGV[2]  The cursor of SCAN, or '' to skip the scan.
-- ARGV[3]  The glob pattern of all keys under the prefix.
-- ARGV[4]  The COUNT of SCAN.
-- ARGV[5]  The score of disabled entries.
-- ARGV[6]  The offset: how many disabled entries to skip.
-- ARGV[7]  The limit: how many disabled entries to read.
-- ARGV[8..] The keys that an earlier call found missing in the sorted set.
--
-- Returns {next cursor or '', missing keys, keys that were added again, keys of enabled entries,
-- number of disabled entries, missing keys whose definition is unreadable or has no name}. The
-- entries that this script adds again, and the enabled entries that it finds, become due now. A
-- hash is an entry if its key is the prefix plus the name in its definition. All other hashes under
-- the prefix belong to a schedule with a longer prefix, or to other programs.

local schedule = KEYS[1]
local prefix, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local disabled, offset, limit = ARGV[5], ARGV[6], ARGV[7]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

-- include: decoded

-- Returns the decoded definition of a hash (nil if unreadable), and its text (nil if missing).
local function definition_of(key)
  local found = redis.pcall('HGET', key, 'definition')
  if type(found) ~= 'string' then
    return nil, nil
  end
  return decoded(found), found
end

-- Returns whether the key is the prefix plus the name. RedBeat 2 also stores numbers as names, and
-- a number in Lua has only 15 exact digits, so the digits of a name are searched in the JSON text.
local function has_name(key, name, text)
  if type(name) ~= 'number' then
    return prefix .. tostring(name) == key
  end
  local suffix = string.sub(key, #prefix + 1)
  return string.sub(key, 1, #prefix) == prefix and string.find(suffix, '^%d+$') ~= nil
    and string.find(text, '"name"%s*:%s*' .. suffix .. '%s*[,}]') ~= nil
end

-- Returns two booleans: whether the key is an entry that is missing in the sorted set, and whether
-- the key may be an unreadable entry.
local function lost(key)
  if redis.call('ZSCORE', schedule, key) then
    return false, false
  end
  local definition, text = definition_of(key)
  if not definition or definition.name == nil then
    return false, text ~= nil
  end
  return has_name(key, definition.name, text), false
end

local returned = {}
for at = 8, #ARGV do
  if lost(ARGV[at]) then
    redis.call('ZADD', schedule, now, ARGV[at])
    returned[#returned + 1] = ARGV[at]
  end
end

local enabled = {}
local members = redis.call(
  'ZRANGEBYSCORE', schedule, disabled, disabled, 'LIMIT', offset, limit)
for _, key in ipairs(members) do
  local definition = definition_of(key)
  if not definition or (definition.enabled ~= false and definition.enabled ~= 0) then
    redis.call('ZADD', schedule, 'XX', now, key)
    enabled[#enabled + 1] = key
  end
end

local orphans, bad = {}, {}
if cursor ~= '' then
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count, 'TYPE', 'hash')
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local is_lost, is_bad = lost(key)
    if is_lost then
      orphans[#orphans + 1] = key
    elseif is_bad then
      bad[#bad + 1] = key
    end
  end
end
return {
  cursor, orphans, returned, enabled, redis.call('ZCOUNT', schedule, disabled, disabled), bad}
