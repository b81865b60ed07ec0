-- Find enabled entries that still have the score of disabled entries, and make them due now. Scan
-- the keys for entries that are stored, but not in the schedule. If the schedule was lost, put
-- these entries back; else a program took them out, so they stay outside.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The quarantine (hash).
-- KEYS[3]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[4]  The stats (hash), see look_for_loss.lua.
-- ARGV[1]  The key prefix.
-- ARGV[2]  The cursor of SCAN, or '' to skip the scan.
-- ARGV[3]  The glob pattern of all keys under the prefix.
-- ARGV[4]  The time limit in microseconds, after which no more keys are scanned.
-- ARGV[5]  For a beat, the mark of look_for_loss.lua for which it scans, or ''. If another mark is
--          stored, the scan starts again. '-' for a caller that only reads.
-- ARGV[6]  The score of disabled entries.
-- ARGV[7]  The offset: how many disabled entries to skip.
-- ARGV[8]  The limit: how many disabled entries to read.
--
-- If the Redis user has no access to a key, the caller passes the schedule key in place of this
-- key; see aside.lua.
--
-- Returns {next cursor ('0' after the last page, '' without a scan), mark, number of disabled
-- entries, keys that are not in the schedule, keys that were put back, keys of enabled entries,
-- keys with a definition that is unreadable or has no name}.
--
-- Only entries with an identity are put back, because a save or a claim of RedBeat 3 gave them
-- their score. They become due now, and a beat decides by their hash; quarantined entries are
-- parked. A hash is an entry if its key is the prefix plus the name in its definition. All other
-- hashes under the prefix belong to a schedule with a longer prefix, or to other programs.

local schedule, quarantine, stats = KEYS[1], KEYS[2], KEYS[4]
local prefix, cursor, pattern, mark = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local disabled, offset, limit = ARGV[6], ARGV[7], ARGV[8]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

-- include: decoded

-- include: aside

-- include: run_time

-- Returns the decoded definition of a hash (nil if unreadable), its text (nil if missing), and the
-- identity of the entry (nil if missing).
local function definition_of(key)
  local found = redis.pcall('HMGET', key, 'definition', 'identity')
  if found.err or not found[1] then
    return nil, nil
  end
  return decoded(found[1]), found[1], found[2]
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

-- Another program may have added the entry name instead of the entry key.
local function is_member(key)
  return redis.call('ZSCORE', schedule, key)
    or redis.call('ZSCORE', schedule, string.sub(key, #prefix + 1))
end

local outside, returned, bad = {}, {}, {}

local function look_at(key)
  if is_member(key) then
    return
  end
  local definition, text, identity = definition_of(key)
  if not definition or definition.name == nil then
    bad[#bad + 1] = text and key
  elseif has_name(key, definition.name, text) then
    if identity and tonumber(mark) then
      local parked = aside('HEXISTS', quarantine, key) == 1
      redis.call('ZADD', schedule, parked and -1 or now, key)
      returned[#returned + 1] = key
    else
      outside[#outside + 1] = key
    end
  end
end

local enabled = {}
local members = redis.call(
  'ZRANGEBYSCORE', schedule, disabled, disabled, 'LIMIT', offset, limit)
for _, key in ipairs(members) do
  local definition = definition_of(key)
  if not definition or not is_off(definition.enabled) then
    redis.call('ZADD', schedule, 'XX', now, key)
    enabled[#enabled + 1] = key
  end
end

if mark ~= '-' then
  local stored = stats ~= schedule and redis.pcall('HGET', stats, 'lost')
  stored = type(stored) == 'string' and stored or ''
  if stored ~= mark then
    mark, cursor = stored, stored ~= '' and '0' or ''
  end
end

-- Entries that are put back are due before all later runs, so a call puts back only a few.
local COUNT, MOST_RETURNED = 100, 100

local function scan()
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', COUNT, 'TYPE', 'hash')
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    look_at(key)
  end
  return cursor ~= '0' and #returned < MOST_RETURNED and not out_of_time(ARGV[4])
end

if cursor ~= '' then
  while scan() do end
  if cursor == '0' and mark ~= '-' then
    redis.pcall('HDEL', stats, 'lost')
  end
end
return {
  cursor, mark, redis.call('ZCOUNT', schedule, disabled, disabled), outside, returned, enabled, bad}
