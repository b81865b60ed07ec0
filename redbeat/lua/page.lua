-- Read entries: those that are named, or a page of all of them in due order, parked ones last.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  statics (set of names)
-- KEYS[3]  quarantine (hash); may be the schedule, see aside.lua
-- ARGV[1]  key prefix
-- ARGV[2]  limit: how many entries to return at most, or 'named'
-- ARGV[3]  score of the last entry of the page before, or '' to begin
-- ARGV[4]  that entry; it need not be there any more
-- ARGV[5]  'keys' to leave all fields but the key and the score empty, 'history' for all of them
-- ARGV[3..] after 'named': entry keys
--
-- Returns {now, score to go on after or '' when this was the last page, entry to go on after,
--          kinds, sizes, fields}
--   kinds    a letter per entry: e entry, g it has no definition, x its key is not a hash
--   sizes    the sizes of the fields of all entries in bytes, separated by spaces
--   fields   per entry thirteen: key, score or '', definition (for x the error), meta, policy,
--            runtime, claim, running, trigger, identity, note of the quarantine, '1' for a static
--            entry, its history if that was asked for
--
-- Pages go on after a score and an entry, not after a rank: what comes and goes elsewhere moves no
-- other entry out of a page or into it.

-- include: aside

local schedule, statics, quarantine, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local keys_only = ARGV[2] ~= 'named' and ARGV[5] == 'keys'
local with_history = ARGV[2] ~= 'named' and ARGV[5] == 'history'

local function before(one, other)
  for at = 1, math.min(#one, #other) do
    local a, b = string.byte(one, at), string.byte(other, at)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- The rank of the first member after this place in the order of the sorted set.
local function rank_after(score, member)
  if redis.call('ZSCORE', schedule, member) == score then
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

local kinds, sizes, fields = {}, {}, {}

local function read(key)
  local found = redis.pcall(
    'HMGET', key, 'definition', 'meta', 'policy', 'runtime', 'claim', 'running', 'trigger',
    'identity')
  return found, found.err
end

local function add(kind, row)
  kinds[#kinds + 1] = kind
  fields[#fields + 1] = table.concat(row)
  for at = 1, #row do
    sizes[#sizes + 1] = #row[at]
  end
end

local function hand_out(member, score)
  if keys_only then
    add('g', {member, score, '', '', '', '', '', '', '', '', '', '', ''})
    return
  end
  local key = member
  if string.sub(member, 1, #prefix) ~= prefix then
    key = prefix .. member  -- a member may name an entry without the prefix
  end
  local found, err = read(key)
  local row = {key, score, err or '', '', '', '', '', '', '', ''}
  for at = 1, err and 0 or 8 do
    row[at + 2] = found[at] or ''
  end
  local note = aside('HGET', quarantine, key)
  row[11] = note ~= 0 and note or ''
  local name = string.sub(key, #prefix + 1)
  row[12] = redis.call('SISMEMBER', statics, name) == 1 and '1' or ''
  row[13] = with_history and not err and redis.call('HGET', key, 'history') or ''
  add(err and 'x' or found[1] and 'e' or 'g', row)
end

local function hand_out_ranks(first, last)
  local members = redis.call('ZRANGE', schedule, first, last, 'WITHSCORES')
  for at = 1, #members, 2 do
    hand_out(members[at], members[at + 1])
  end
  return members[#members], members[#members - 1]
end

local next_score, next_member = '', ''

local function hand_out_page(limit, score, member)
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
      next_score, next_member = hand_out_ranks(rank, last - 1)
      limit = limit - (last - rank)
    end
    rank = 0
    if last < total then
      return
    end
  end
  local last = math.min(rank + limit, parked)
  if last > rank then
    next_score, next_member = hand_out_ranks(rank, last - 1)
  end
  if last >= parked then
    next_score, next_member = '', ''
  end
end

if ARGV[2] == 'named' then
  for at = 3, #ARGV do
    hand_out(ARGV[at], redis.call('ZSCORE', schedule, ARGV[at]) or '')
  end
else
  hand_out_page(tonumber(ARGV[2]), ARGV[3], ARGV[4])
end

local clock = redis.call('TIME')
return {
  string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2])), next_score, next_member,
  table.concat(kinds), table.concat(sizes, ' '), table.concat(fields)}
