-- Look for entries that nobody looks at: hashes without a member, disabled ones enabled since.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  a key that never exists: while a cluster moves the slot, its nodes answer TRYAGAIN
-- ARGV[1]  key prefix
-- ARGV[2]  cursor of SCAN, or '' not to scan
-- ARGV[3]  glob pattern of all keys under the prefix
-- ARGV[4]  COUNT of SCAN
-- ARGV[5]  score of disabled entries
-- ARGV[6]  offset: how many disabled entries to skip
-- ARGV[7]  limit: how many disabled entries to look at
-- ARGV[8..] entry keys without a member, as found some time before
--
-- Returns {next cursor or '', keys without a member, keys that are members again, keys that were
-- enabled, how many are disabled, keys without a member whose definition has no name}. The
-- third and the fourth are due now. A hash counts as an entry
-- when the name in its definition is that of its key: others belong to a schedule with a longer
-- prefix, or to somebody else.

local schedule = KEYS[1]
local prefix, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local disabled, offset, limit = ARGV[5], ARGV[6], ARGV[7]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

-- include: decoded

-- The definition in the hash, nil when there is none that can be read, and whether there is a text.
local function definition_of(key)
  local found = redis.pcall('HGET', key, 'definition')
  if type(found) ~= 'string' then
    return nil, false
  end
  return decoded(found), true
end

-- Whether a key should be a member, and whether it may be an entry that cannot be read.
local function lost(key)
  if redis.call('ZSCORE', schedule, key) then
    return false, false
  end
  local definition, has_text = definition_of(key)
  if not definition or definition.name == nil then
    return false, has_text
  end
  return prefix .. tostring(definition.name) == key, false
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
