-- Write entries, or only their histories, unless one is not what the caller believes.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash); may be the schedule, see aside.lua
-- KEYS[3]  entry (hash): the first one that is written
-- ARGV[1]  wake-up channel, told when a beat that waits must not wait on
-- ARGV[2]  seconds that a beat waits at most without being told
-- ARGV[3]  entries, packed: the sizes of their fields in bytes, four bytes each, highest first
-- ARGV[4]  the fields, one after the other; per entry eleven:
--            entry key
--            definition, or '' to change only the history of an entry that exists
--            policy, or '' for none (ignored without a definition)
--            meta, or '' to leave the stored one
--            runtime, or '' to leave the stored one
--            the meta the caller has seen: its text, '' = none, '*' = any
--            score (UNIX seconds; below 0 = parked), or 'now' for the time of Redis
--            the instant from which a new entry, or one that begins again, counts, UNIX seconds,
--            where it is the caller's clock that made it up, else ''
--            '' or, to be refused where another text is stored, '=', the definition, a line feed
--            and the policy that the caller has seen, or '-' for no entry
--            the lines of the history as a JSON text, or '' to leave the stored ones
--            the identity that a new entry gets, a JSON text, see claim.lua; '' for none. Whoever
--            repeats a call gives the same one
--
-- Returns {codes, text, ...}
--   codes  a number per entry, separated by spaces: 1 written; 0 the stored meta is another one; 2 as
--          0, but definition and policy are those given and the caller has no history of its own, so
--          that nothing is to be written; -1 there is no entry, and a definition or its meta is
--          missing to make one; -2 the key is not a hash; -3 the caller's clock is ahead of this one;
--          -4 definition or policy are not those it has seen, nor those given, as after a call whose
--          reply got lost; -5 it would have been written, but a key is not a hash; 3 written, and the
--          identity is another one than that given
--   text   for each code 0 meta, runtime, definition and policy, for 2 meta, runtime, score or '',
--          and identity, for 3 the identity, for -3 now
-- An entry is written only for 1 and 3, and none is where a key is not a hash. While a claim is held the
-- score stays: the completion of that claim sees the change and has the entry looked at again at
-- once.

local schedule, quarantine = KEYS[1], KEYS[2]
local channel, longest_wait = ARGV[1], tonumber(ARGV[2])

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
-- Clocks of hosts that are in order differ by less, seconds.
local TOLERANCE = 0.5

-- include: row_reader
-- include: aside
-- include: read_claim

-- The fields of each entry.
local function unpacked(sizes, packed)
  local asked, start, read_row = {}, 1, row_reader(11)
  for at = 1, #sizes, 44 do
    asked[#asked + 1], start = read_row(sizes, at, packed, start)
  end
  return asked
end

local asked = unpacked(ARGV[3], ARGV[4])

-- These fail before the first write where a key of the schedule is of another type.
redis.call('ZCARD', schedule)
local quarantined = aside('HLEN', quarantine)

local function load(entry)
  return redis.pcall(
    'HMGET', entry, 'definition', 'meta', 'runtime', 'claim', 'policy', 'trigger', 'identity')
end

-- What is stored of each entry that was not written yet.
local loaded = {}

local function refused()
  local codes, bad = {}, false
  for i = 1, #asked do
    local entry = asked[i][1]
    local stored = load(entry)
    loaded[entry] = stored
    local is_bad = stored.err ~= nil
    bad = bad or is_bad
    codes[i] = is_bad and -2 or -5
  end
  return bad and codes
end

-- Scores to write and whose they are, the earliest of them, and whose that is.
local scores, earliest, whose = {}, nil, nil

local function write_score(entry, score, triggered)
  if score == 'now' or triggered then
    score = string.format('%.6f', now)
  end
  scores[#scores + 1] = score
  scores[#scores + 1] = entry
  local due = tonumber(score)
  if due >= 0 and (not earliest or due < earliest) then
    earliest, whose = due, entry
  end
end

local function write_scores()
  for at = 1, #scores, 1000 do
    redis.call('ZADD', schedule, unpack(scores, at, math.min(at + 999, #scores)))
  end
end

local function write_texts(entry, stored, definition, policy, meta, runtime, history, identity)
  local texts = {}
  local function add(field, text)
    if text ~= '' then
      texts[#texts + 1] = field
      texts[#texts + 1] = text
    end
  end
  if definition ~= '' then
    add('definition', definition)
    add('policy', policy)
    add('identity', stored[7] and '' or identity)
  end
  add('meta', meta)
  add('runtime', runtime)
  add('history', history)
  if #texts > 0 then
    redis.call('HSET', entry, unpack(texts))
  end
  if definition ~= '' and policy == '' and stored[5] then
    redis.call('HDEL', entry, 'policy')
  end
end

local function leave_quarantine(entry)
  if quarantined > 0 then
    redis.call('HDEL', quarantine, entry)
  end
end

local NOTHING = {false, false, false, false, false, false, false}

-- Whether an entry is what a caller wants to write: an earlier call of the same did that, or of a
-- change somebody else. New entries are told apart by their identity.
local function stands(stored, definition, policy, believed, identity)
  return stored[1] == definition and (stored[5] or '') == policy
    and (believed ~= '-' or stored[7] == identity)
end

local function is_ahead(made_up)
  return (tonumber(made_up) or 0) > now + TOLERANCE
end

local function save(
  entry, definition, policy, meta, runtime, seen, score, made_up, believed, history, identity)
  local stored = loaded[entry] or load(entry)
  loaded[entry] = nil
  if believed ~= '' then
    local texts = stored[1] and '=' .. stored[1] .. '\n' .. (stored[5] or '') or '-'
    if texts ~= believed and not stands(stored, definition, policy, believed, identity) then
      return -4
    end
  end
  if not stored[1] then
    if definition == '' or meta == '' then
      return -1
    end
    if is_ahead(made_up) then
      return -3, string.format('%.6f', now)
    end
    if redis.call('HLEN', entry) > 0 then
      -- History without a definition belonged to an entry that is gone.
      redis.call('HDEL', entry, 'meta', 'runtime', 'claim', 'policy', 'running', 'ended', 'history',
        'trigger', 'identity')
    end
    stored = NOTHING
  end
  if stored[1] and seen ~= '*' and (stored[2] or '') ~= seen and stored[2] ~= meta then
    local told, ran = stored[2] or '', stored[3] or ''
    if made_up == '' or stored[1] ~= definition or (stored[5] or '') ~= policy then
      return 0, told, ran, stored[1], stored[5] or ''
    end
    leave_quarantine(entry)
    return 2, told, ran, redis.call('ZSCORE', schedule, entry) or '', stored[7] or ''
  end
  if stored[1] and meta ~= '' and stored[2] ~= meta and is_ahead(made_up) then
    return -3, string.format('%.6f', now)
  end
  if definition ~= '' and stored[4] and not stored[7] then
    redis.call('HSET', entry, 'identity', '""')  -- its run may have been sent, see claim.lua
    stored[7] = '""'
  end
  write_texts(entry, stored, definition, policy, meta, runtime, history, identity)
  leave_quarantine(entry)
  local code, identity_told = 1, nil
  if definition ~= '' and stored[7] and stored[7] ~= identity then
    code, identity_told = 3, stored[7]
  end
  if stored[4] then
    local _, _, expires = read_claim(stored[4], now)
    if expires > now and redis.call('ZSCORE', schedule, entry) then
      return code, identity_told
    end
    redis.call('HDEL', entry, 'claim')
  end
  write_score(entry, score, stored[6])
  return code, identity_told
end

local function is_first(entry)
  return redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'LIMIT', 0, 1)[1] == entry
end

local codes, reply = refused(), {''}

local function note(i, code, ...)
  codes[i] = code
  for at = 1, select('#', ...) do
    reply[#reply + 1] = select(at, ...)
  end
end

if not codes then
  codes = {}
  for i = 1, #asked do
    note(i, save(unpack(asked[i], 1, 11)))
  end
  write_scores()
  if earliest
    and (earliest <= now or (earliest < now + longest_wait and is_first(whose))) then
    -- A user may lack the right to publish; the beat then sees the entry in its next turn.
    redis.pcall('PUBLISH', channel, 'due')
  end
end
reply[1] = table.concat(codes, ' ')
return reply
