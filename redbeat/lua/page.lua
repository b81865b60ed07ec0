-- Read named entries, or a page of all entries in due order. Entries that are never due come last.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The names of the static entries (set).
-- KEYS[3]  The quarantine (hash), or the schedule key if the Redis user has no access to the
--          quarantine; see aside.lua.
-- ARGV[1]  The key prefix.
-- ARGV[2]  The time limit in microseconds. A page ends after the time limit or after MOST_BYTES.
-- ARGV[3]  The maximum number of entries on the page, or 'named' to read only named entries.
-- ARGV[4]  The score of the last entry of the previous page, or '' for the first page.
-- ARGV[5]  The key of the last entry of the previous page, even if this entry was deleted since.
-- ARGV[6]  'history' to also return the run histories.
-- ARGV[4..] For 'named', the keys of the entries to read. If a page ends before the last of the
--          named entries, the reply does not contain the remaining entries.
--
-- Returns {now, last score, last key, kinds, sizes, fields}.
--   `last score` and `last key` are the score and the key of the last entry, or '' on the last
--     page.
--   `kinds` has a letter per entry: e if the entry is readable, g if it has no definition, x if the
--     key is not a hash.
--   `sizes` has the sizes in bytes of the fields of all entries, as big-endian integers of four
--     bytes.
--   `fields` has fifteen strings per entry: key, score or '', definition (for kind x, the error),
--     meta, policy, runtime, claim, running, trigger, identity, note of the quarantine, '1' for a
--     static entry, the history if requested, why the run of the entry could not be sent (see
--     still_fails.lua), the first line of the results (see results.lua).
--
-- A page starts after a score and a key, not after a rank, so that an entry that is added or
-- removed between two pages does not move the other entries to another page.

-- include: aside

-- include: text_in

-- include: sha1hex

-- include: marks

-- include: still_fails

-- include: row_sizes

local schedule, statics, quarantine, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local time_limit, with_history = ARGV[2], ARGV[3] ~= 'named' and ARGV[6] == 'history'

local function before(one, other)
  for at = 1, math.min(#one, #other) do
    local a, b = string.byte(one, at), string.byte(other, at)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- Returns the rank of the first member of the sorted set after `score` and `member`. Scores are
-- compared as numbers, not as texts, because Redis 7.0 writes a number with more digits than Redis
-- 7.2.
local function rank_after(score, member)
  local found = redis.call('ZSCORE', schedule, member)
  if found and tonumber(found) == tonumber(score) then
    return redis.call('ZRANK', schedule, member) + 1
  end
  local low = redis.call('ZCOUNT', schedule, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', schedule, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(redis.call('ZRANGE', schedule, middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local clock = redis.call('TIME')

-- include: run_time

local quarantined = aside('HLEN', quarantine)
local has_statics = redis.call('SCARD', statics) > 0

local kinds, sizes, fields, packed_sizes = {}, {}, {}, row_sizes(15)

-- The total size of the entries on the page, in bytes.
local MOST_BYTES, bytes = 4194304, 0

local function read(key)
  local found = redis.pcall(
    'HMGET', key, 'definition', 'meta', 'policy', 'runtime', 'claim', 'running', 'trigger',
    'identity', 'failing', 'results')
  return found, found.err
end

local function add_row(kind, row)
  kinds[#kinds + 1] = kind
  fields[#fields + 1] = table.concat(row)
  bytes = bytes + #fields[#fields]
  local lengths = {}
  for at = 1, 15 do
    lengths[at] = #row[at]
  end
  sizes[#sizes + 1] = packed_sizes(unpack(lengths))
end

local function add_entry(member, score)
  local key = member
  if string.sub(member, 1, #prefix) ~= prefix then
    key = prefix .. member  -- another program added an entry name instead of an entry key
  end
  local found, err = read(key)
  local row = {key, score, err or '', '', '', '', '', '', '', ''}
  for at = 1, err and 0 or 8 do
    row[at + 2] = found[at] or ''
  end
  row[11] = quarantined > 0 and redis.call('HGET', quarantine, key) or ''
  local name = string.sub(key, #prefix + 1)
  row[12] = has_statics and redis.call('SISMEMBER', statics, name) == 1 and '1' or ''
  row[13] = with_history and not err and redis.call('HGET', key, 'history') or ''
  row[14] = not err and still_fails(found[9], found[5], found[2]) and found[9] or ''
  row[15] = not err and found[10] and string.match(text_in(found[10]), '^(.-)\\n') or ''
  add_row(err and 'x' or found[1] and 'e' or 'g', row)
end

local function is_full()
  return bytes > MOST_BYTES or (#kinds % CHECKED == 0 and out_of_time(time_limit))
end

local next_score, next_member = '', ''

-- Adds the entries with the ranks from `first` to `last`. Returns whether the page has room for
-- more entries.
local function add_ranks(first, last)
  local members = redis.call('ZRANGE', schedule, first, last, 'WITHSCORES')
  for at = 1, #members, 2 do
    add_entry(members[at], members[at + 1])
    next_score, next_member = members[at + 1], members[at]
    if at + 1 < #members and is_full() then
      return false
    end
  end
  return true
end

local function add_page(limit, score, member)
  local total = redis.call('ZCARD', schedule)
  local parked = redis.call('ZCOUNT', schedule, '-inf', '(0')
  local at_parked = score ~= '' and tonumber(score) < 0
  local rank = parked
  if score ~= '' then
    rank = rank_after(score, member)
  end
  if not at_parked then
    local last = math.min(rank + limit, total)
    if last > rank then
      if not add_ranks(rank, last - 1) then
        return
      end
      limit = limit - (last - rank)
    end
    rank = 0
    if last < total then
      return
    end
  end
  local last = math.min(rank + limit, parked)
  if last > rank and not add_ranks(rank, last - 1) then
    return
  end
  if last >= parked then
    next_score, next_member = '', ''
  end
end

if ARGV[3] == 'named' then
  for at = 4, #ARGV do
    -- Another program may have added the entry name instead of the entry key.
    local name = string.sub(ARGV[at], #prefix + 1)
    local score = redis.call('ZSCORE', schedule, ARGV[at]) or redis.call('ZSCORE', schedule, name)
    add_entry(ARGV[at], score or '')
    if is_full() then
      break
    end
  end
else
  add_page(tonumber(ARGV[3]), ARGV[4], ARGV[5])
end

return {
  string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2])), next_score, next_member,
  table.concat(kinds), table.concat(sizes), table.concat(fields)}
