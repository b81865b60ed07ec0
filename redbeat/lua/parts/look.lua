-- look_around(look) returns the rows to look at, when there is more, as a text, and the keys.

-- A text longer than this is looked at alone: its digest, its JSON and the way there take time.
local LONG = 65536

-- Returns the members of a range, without those that are left out, as {key, score, key, score...}:
-- of the share, and of others. With `newest`, the last ones come first.
local function members(first, last, count, mine, newest)
  local own, others = {}, {}
  local found = newest and redis.call(  -- users of Redis have no right to ZREVRANGEBYSCORE
    'ZRANGE', schedule, last, first, 'BYSCORE', 'REV', 'LIMIT', 0, count, 'WITHSCORES')
    or redis.call('ZRANGEBYSCORE', schedule, first, last, 'WITHSCORES', 'LIMIT', 0, count)
  for i = 1, #found, 2 do
    local list = (not mine or mine(found[i])) and own or others
    if not left_out[found[i]] then
      list[#list + 1], list[#list + 2] = found[i], found[i + 1]
    end
  end
  return own, others
end

local function next_score(mine)
  local found = redis.call(
    'ZRANGEBYSCORE', schedule, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, mine and 50 or 1)
  local others
  for i = 1, #found, 2 do
    local score = tonumber(found[i + 1])
    if not mine or mine(found[i]) then
      return math.min(score, (others or score) + 1)
    end
    others = others or score
  end
  return others and math.min(others + 1, #found < 100 and math.huge or tonumber(found[#found]))
end

-- Returns the entry of a member. If a program added a name in place of a key, the key replaces it.
local function entry_of(member, score)
  local found, problem = read(member)
  if not found[1] and score ~= '' then
    local key = prefix .. member
    local named = read(key)
    if named[1] then
      if type(redis.pcall('ZADD', schedule, 'NX', score, key)) == 'number' then
        redis.call('ZREM', schedule, member)
      end
      return key, named
    end
  end
  return member, found, problem
end

-- Whether the look found no inbox at all, as in most idle turns: a command then stands for three.
local inbox_is_empty = false

-- Returns the keys whose inbox is to be taken in now, as {key, score...}: also others' that are a
-- second late, and those of a time that nobody writes, because the clock went back. They are given
-- out again in a second, if nobody takes it in.
local function said_members(limit, mine)
  local found, first = {}, side('ZRANGE', 'inbox', 0, 0)
  inbox_is_empty = first and not first[1]
  if inbox_is_empty then
    return found
  end
  local function add(first, last)
    local said = side('ZRANGEBYSCORE', 'inbox', first, last, 'WITHSCORES', 'LIMIT', 0, limit) or {}
    for i = 1, #said, 2 do
      local key, at = said[i], tonumber(said[i + 1])
      if not left_out[key] and (not mine or mine(key) or at < now - 1 or at > now) then
        left_out[key] = true
        found[#found + 1], found[#found + 2] = key, redis.call('ZSCORE', schedule, key) or ''
        side('ZADD', 'inbox', 'XX', now + 1, key)
      end
    end
  end
  add(0, now_text)
  add(now + 2, '+inf')
  return found
end

-- Returns when the next inbox is to be taken in, others' a second later.
local function next_said(mine)
  if inbox_is_empty then
    return math.huge
  end
  local key, at = unpack(side('ZRANGE', 'inbox', 0, 0, 'WITHSCORES') or {})
  return key and (tonumber(at) + ((mine and not mine(key)) and 1 or 0)) or math.huge
end

-- Returns what may be looked at, as {key, score...}; more than `limit` if there are more. Each third
-- one is the oldest of the late ones, the others are the newest that became due in the last second,
-- so that thousands of one second do not stand before one of three tenths later. They alternate,
-- because a look may stop early. A tenth may be late ones of other beats, all if there are no others.
local function candidates(limit, late_limit, skipped, mine)
  local found = said_members(limit, mine)
  local function take(list, i)
    found[#found + 1], found[#found + 2] = list[2 * i - 1], list[2 * i]
  end
  local count, second = mine and 1000 or limit + skipped + 1, string.format('%.6f', now - 1)
  local fresh = members(second, now_text, count, mine, true)
  local late, others = members(0, '(' .. second, count, mine)
  local most = #late + #fresh == 0 and limit or math.ceil(limit / 10)
  local borrowed = math.min(most, late_limit, #others / 2)
  local late_count = math.min(#late / 2, late_limit - borrowed)
  for i = 1, borrowed do
    take(others, i)
  end
  for i = 1, math.max(late_count, math.ceil(#fresh / 4)) do
    if i <= late_count then
      take(late, i)
    end
    take(fresh, 2 * i - 1)
    take(fresh, 2 * i)
  end
  return found
end

local function look_around(wanted)
  local limit, skip, skipped = wanted.limit or 100, wanted.skip or {}, 0
  local most_bytes, most_seconds = wanted.max_bytes or 1048576, (wanted.max_ms or 8) / 1000
  local rows, keys, bytes, full = {}, {}, 0, false
  if limit == 0 then
    return rows, nil, keys
  end
  for _ in pairs(skip) do
    skipped = skipped + 1
  end
  for _, key in ipairs(wanted.in_hand or {}) do
    left_out[key], keys[#keys + 1], skipped = true, key, skipped + 1
  end
  local mine = wanted.shares and own_share()
  local list = wanted.only and {wanted.only, redis.call('ZSCORE', schedule, wanted.only) or ''}
    or wanted.soon and redis.call(
      'ZRANGEBYSCORE', schedule, '(' .. now_text, string.format('%.17g', now + wanted.soon),
      'WITHSCORES', 'LIMIT', wanted.offset or 0, limit)
    or candidates(limit, wanted.late or math.huge, skipped, mine)
  for i = 1, #list, 2 do
    local key, found, problem = entry_of(list[i], list[i + 1])
    if not skip[key] or skip[key] ~= digest_of(found) then
      local line = row(key, list[i + 1], found, problem)
      if full or (#rows > 0 and (#line > LONG or bytes + #line > most_bytes)) then
        return rows, now_text, keys
      end
      rows[#rows + 1], keys[#keys + 1], bytes = line, key, bytes + #line
      full = #line > LONG or #rows >= limit
        or (#rows % 8 == 0 and run_time() - started > most_seconds)
    end
  end
  local next_due = math.min(next_score(mine) or math.huge, next_said(mine))
  return rows, string.format('%.17g', next_due), keys
end
