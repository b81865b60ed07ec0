-- Read named entries, or a page of all entries in due order; those that are never due come last.
--
-- KEYS     the schedule, the static entries, a key that never exists (see turn.lua).
-- ARGV[1]  the head, JSON by name, from storage/reading.py: `max_bytes` and `max_seconds`; and for a
--          page its `limit`, `score` and `member` of the last entry of the page before, '' for the
--          first page. `history` asks for what is stored about runs.
-- ARGV[2]  and all that follow: the keys of named entries.
--
-- Returns {now, score, member, side error, rows}. `score` and `member` are those of the last entry,
-- '' on the last page. The rows are a JSON array, see Row in storage/rows.py.
--
-- A page starts after a score and a key, not after a rank, so that an entry that is added or
-- removed between two pages does not move the others to another page.

-- include: start

-- include: side

-- include: row

-- include: run_time

local head = cjson.decode(ARGV[1])
local quarantined = (side('HLEN', 'quarantine') or 0) > 0
local has_statics = redis.call('SCARD', statics) > 0
local rows, bytes = {}, 0

local function add(member, score)
  local key = is_ours(member) and member or prefix .. member  -- a program added a name, not a key
  local found, problem = read(key)
  local name, more = string.sub(key, #prefix + 1), {}
  more.static = has_statics and redis.call('SISMEMBER', statics, name) == 1
  more.note = quarantined and side('HGET', 'quarantine', key) or nil
  if head.history and not problem then
    more.history, more.results = found[6] or nil, redis.call('HGET', key, 'results') or nil
  end
  rows[#rows + 1] = row(key, score, found, problem, more)
  bytes = bytes + #rows[#rows]
end

local function is_full()
  return bytes > head.max_bytes or (#rows % 8 == 0 and run_time() - started > head.max_seconds)
end

-- Compares bytes, as Redis does; Lua compares texts by the locale of the server.
local function before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- Returns the rank of the first member after `score` and `member`, which may be gone.
local function rank_after(score, member)
  local low = redis.call('ZCOUNT', schedule, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', schedule, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local found = redis.call('ZRANGE', schedule, middle, middle)[1]
    if before(member, found) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function add_page()
  local total = redis.call('ZCARD', schedule)
  local parked = redis.call('ZCOUNT', schedule, '-inf', '(0')
  -- Positions count the entries that are due before the parked ones, which have the first ranks.
  local position = 0
  if head.score ~= '' then
    local is_parked = string.byte(head.score) == 45
    position = rank_after(head.score, head.member) + (is_parked and total - parked or -parked)
  end
  local stop, score, member = math.min(position + head.limit, total), '', ''
  while position < stop do
    local rank = (position + parked) % total
    local last = rank < parked and parked or total
    local found = redis.call(
      'ZRANGE', schedule, rank, math.min(rank + stop - position, last) - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      member, score = found[i], found[i + 1]
      add(member, score)
      position = position + 1
      if is_full() then
        stop = position
        break
      end
    end
  end
  if position < total then
    return score, member
  end
  return '', ''
end

local score, member = '', ''
if head.limit then
  score, member = add_page()
end
for i = 2, #ARGV do
  local key = ARGV[i]
  local name, found = string.sub(key, #prefix + 1), redis.call('ZSCORE', schedule, key)
  -- A name that begins with the prefix is the key of another entry.
  found = found or (not is_ours(name) and redis.call('ZSCORE', schedule, name))
  add(key, found or '')
  if is_full() then
    break
  end
end
return {now_text, score, member, side_error or '', together(rows)}
