-- Find entries that no beat would claim: hashes without a member, and enabled entries whose score is
-- still that of a disabled one.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  a key that never exists: while a cluster moves the slot, its nodes answer TRYAGAIN
-- ARGV[1]  key prefix
-- ARGV[2]  cursor of SCAN, or '' not to scan
-- ARGV[3]  glob pattern of all keys under the prefix
-- ARGV[4]  COUNT of SCAN
-- ARGV[5]  score of disabled entries
-- ARGV[6]  offset: how many disabled entries to skip
-- ARGV[7]  limit: how many disabled entries to read
-- ARGV[8..] keys without a member, from an earlier call
--
-- Returns {next cursor or '', keys without a member, keys that are members again, keys of enabled
-- entries, number of disabled entries, keys without a member whose definition has no name}. The keys
-- of the third and the fourth are due now. A hash is an entry if its key has the name in its
-- definition; other hashes belong to a schedule with a longer prefix, or to other programs.

local schedule = KEYS[1]
local prefix, cursor, pattern, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local disabled, offset, limit = ARGV[5], ARGV[6], ARGV[7]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

-- include: decoded

-- Returns the decoded definition in a hash, nil if unreadable, and whether there is a text.
local function definition_of(key)
  local found = redis.pcall('HGET', key, 'definition')
  if type(found) ~= 'string' then
    return nil, false
  end
  return decoded(found), true
end

-- Returns whether a key should be a member, and whether it may be an unreadable entry.
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
