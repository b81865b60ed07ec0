-- Write entries, or only their meta and runtime. An entry is not written if the stored entry
-- differs from the entry that the caller expects.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The quarantine (hash).
-- KEYS[3]  The first entry to write (hash).
-- KEYS[4]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[5]  The entries with `expect_within` (zset), see ended.lua.
-- KEYS[6]  The stats (hash), see look_for_loss.lua.
-- ARGV[1]  The wake-up channel. The script publishes a message if an entry is due before waiting
--          beats wake up.
-- ARGV[2]  The maximum number of seconds that a beat waits without a message.
-- ARGV[3]  The sizes in bytes of the fields in the next argument, as big-endian integers of four
--          bytes.
-- ARGV[4]  The fields of all entries, joined without separators; eleven fields per entry.
--   Field 1 is the entry key.
--   Field 2 is the definition, or '' to change only meta, runtime and history of an existing entry.
--   Field 3 is the policy, or '' for no policy (ignored without a definition).
--   Field 4 is the meta, or '' to keep the stored meta.
--   Field 5 is the runtime, or '' to keep the stored runtime.
--   Field 6 is the JSON of the expected meta, '' for no meta, or '*' for any meta.
--   Field 7 is the score (UNIX seconds; below 0 = never due), or 'now' for the time of Redis.
--   Field 8 is the default last run of a new or restarted entry, in UNIX seconds, if the clock of
--     the caller determined this time; else ''.
--   Field 9 is '=', the expected definition, a line feed and the expected policy; or '-' if no
--     entry is expected, or '' if any entry is accepted.
--   Field 10 is the lines of the history as a JSON string, or '' to keep the stored lines.
--   Field 11 is the identity of a new entry, a JSON string, see claim.lua; '' for no identity. A
--     repeated call must pass the same identity as the first call.
-- ARGV[5]  The time limit in microseconds, after which the remaining entries are not written.
--
-- If the Redis user has no access to a key, the caller passes the schedule key in place of this
-- key; see aside.lua.
--
-- Returns {codes, text, ...}.
--   `codes` has a number per entry, separated by spaces; entries after the time limit have no code.
--   Code 1 means that the entry is written.
--   Code 3 means that the entry is written, but keeps its stored identity, which differs from the
--     new identity.
--   Code 0 means that the stored meta differs from the expected meta.
--   Code 2 means that the stored meta differs from the expected meta, but that there is nothing to
--     write: the new meta is a default, and the new definition and policy are stored already.
--   Code -1 means that the entry does not exist, and that the definition or the meta to create it
--     is missing.
--   Code -2 means that the entry key is not a hash.
--   Code -3 means that the clock of the caller is ahead of Redis.
--   Code -4 means that the stored definition or policy is neither the expected value nor the new
--     value, which an earlier call whose reply was lost may have stored.
--   Code -5 means that the entry is not written, because the key of another entry is not a hash.
--   For each code 0, the texts are the meta, runtime, definition and policy of the entry.
--   For each code 2, the texts are the meta, runtime, score or '', and identity of the entry.
--   For each code 3, the text is the identity of the entry.
--   For each code -3, the text is the time of Redis.
--
-- If the key of any entry is not a hash, the script writes no entry. While a beat holds the claim
-- of an entry, this script does not change the score, because the completion of the claim detects
-- the change and makes the entry due now. A write without definition and meta changes only a score:
-- an entry without a score stays unscheduled. If an ended claim may have sent its run, and the save
-- changes no field on which the decision of the claim depends, the entry becomes due now, and the
-- next claim repeats the decision.

local schedule, quarantine, expected, stats = KEYS[1], KEYS[2], KEYS[5], KEYS[6]
local channel, longest_wait = ARGV[1], tonumber(ARGV[2])

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
-- The accepted difference between the clocks of two hosts, in seconds.
local TOLERANCE = 0.5

-- include: row_reader

-- include: aside

-- include: read_claim

-- include: decoded

-- include: sha1hex

-- include: marks

-- include: same_rules

-- include: text_in

-- include: results

-- include: run_time

-- include: look_for_loss

-- Returns a list of entries, in which each entry is a list of its fields.
local function unpacked(sizes, packed)
  local rows, start, read_row = {}, 1, row_reader(11)
  for at = 1, #sizes, 44 do
    rows[#rows + 1], start = read_row(sizes, at, packed, start)
  end
  return rows
end

local writings = unpacked(ARGV[3], ARGV[4])

-- The script must fail before its first write if the key of the schedule or of the quarantine has
-- the wrong type.
local members = redis.call('ZCARD', schedule)
local quarantined = aside('HLEN', quarantine)

local function load(entry)
  return redis.pcall(
    'HMGET', entry, 'definition', 'meta', 'runtime', 'claim', 'policy', 'trigger', 'identity')
end

-- The stored fields of each entry that was not written yet: entry key -> fields.
local loaded = {}

-- Loads all entries. Returns a code per entry if any key is not a hash, else false.
local function type_errors()
  local codes, bad = {}, false
  for i = 1, #writings do
    local entry = writings[i][1]
    local stored = load(entry)
    loaded[entry] = stored
    local is_bad = stored.err ~= nil
    bad = bad or is_bad
    codes[i] = is_bad and -2 or -5
  end
  return bad and codes
end

-- `scores` is a flat list of the scores to write, in which each score is followed by its entry key.
-- `earliest` is the earliest of the scores to write.
local scores, earliest = {}, nil

local function write_score(entry, score, triggered)
  if score == 'now' or triggered then
    score = string.format('%.6f', now)
  end
  scores[#scores + 1] = score
  scores[#scores + 1] = entry
  local due = tonumber(score)
  if due >= 0 and (not earliest or due < earliest) then
    earliest = due
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

-- Returns whether `definition` and `policy` are already stored, for example by an earlier call
-- whose reply was lost. If the caller expects no entry, the identity must also be equal, because
-- another client may have created an equal entry.
local function is_written(stored, definition, policy, believed, identity)
  return stored[1] == definition and (stored[5] or '') == policy
    and (believed ~= '-' or stored[7] == identity)
end

local function is_ahead(made_up)
  return (tonumber(made_up) or 0) > now + TOLERANCE
end

-- Releases a claim whose run may have been sent, so that the next claim repeats the decision of the
-- released claim. A claim is not released if the save changes a field on which the decision of the
-- claim depends. Returns whether the claim was released. `stored` contains the fields of the entry
-- before the save.
local function keep_decision(entry, stored, definition, policy, meta)
  local claim, was, was_policy, was_meta = stored[4], stored[1], stored[5] or '', stored[2] or ''
  local _, due, _, since, delivery = read_claim(claim)
  if delivery ~= 'l' or not tonumber(since) or (meta ~= '' and meta ~= was_meta)
    or not same_rules(claim, was, was_policy, was_meta) then
    return false
  end
  if definition == '' then
    definition, policy = was, was_policy
  elseif not equal_rules(was, was_policy, definition, policy) then
    return false
  end
  local head = put_back_head(due or string.format('%.6f', now), since .. ' l')
  redis.call('HSET', entry, 'claim', claim_text(head, definition, policy, was_meta))
  return true
end

local function save(
  entry, definition, policy, meta, runtime, seen, score, made_up, believed, history, identity)
  local stored = loaded[entry] or load(entry)
  loaded[entry] = nil
  if believed ~= '' then
    local texts = stored[1] and '=' .. stored[1] .. '\n' .. (stored[5] or '') or '-'
    if texts ~= believed and not is_written(stored, definition, policy, believed, identity) then
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
      -- A hash without a definition is left over from a deleted entry.
      redis.call('HDEL', entry, 'meta', 'runtime', 'claim', 'policy', 'running', 'ended', 'history',
        'trigger', 'identity', 'failing', 'results', 'unread')
    end
    stored = NOTHING
  end
  if stored[1] and seen ~= '*' and (stored[2] or '') ~= seen and stored[2] ~= meta then
    local stored_meta, stored_runtime = stored[2] or '', stored[3] or ''
    if made_up == '' or stored[1] ~= definition or (stored[5] or '') ~= policy then
      return 0, stored_meta, stored_runtime, stored[1], stored[5] or ''
    end
    leave_quarantine(entry)
    local stored_score = redis.call('ZSCORE', schedule, entry) or ''
    return 2, stored_meta, stored_runtime, stored_score, stored[7] or ''
  end
  if stored[1] and meta ~= '' and stored[2] ~= meta and is_ahead(made_up) then
    return -3, string.format('%.6f', now)
  end
  if definition ~= '' and stored[4] and not stored[7] then
    -- If a run of this claim was sent while the entry had no identity, a repeated run must have the
    -- same task id. The task id depends on the identity, so the stored identity must be empty.
    redis.call('HSET', entry, 'identity', '""')
    stored[7] = '""'
  end
  write_texts(entry, stored, definition, policy, meta, runtime, history, identity)
  if definition ~= '' then
    watch(entry, expected, definition, policy, stored[1], string.format('%.6f', now))
  end
  leave_quarantine(entry)
  local code, stored_identity = 1, nil
  if definition ~= '' and stored[7] and stored[7] ~= identity then
    code, stored_identity = 3, stored[7]
  end
  if stored[4] then
    local _, _, expires, _, _, unread = read_claim(stored[4], now)
    if expires > now and redis.call('ZSCORE', schedule, entry) then
      if definition ~= '' then
        note_edit(entry, stored[4], stored[1], stored[5], stored[2], definition, policy)
      end
      return code, stored_identity
    end
    if unread then
      score = 'now'  -- a later version or the next claim handles a claim of unknown format
    elseif keep_decision(entry, stored, definition, policy, meta) then
      redis.call('HDEL', entry, 'failing')
      score = 'now'
    else
      redis.call('HDEL', entry, 'claim', 'failing')
    end
  end
  local only_score = definition == '' and meta == ''
  if not (only_score and not redis.call('ZSCORE', schedule, entry)) then
    write_score(entry, score, stored[6])
  end
  return code, stored_identity
end

local function no_earlier_than(score)
  local first = redis.call(
    'ZRANGEBYSCORE', schedule, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return first and tonumber(first) >= score
end

local codes, reply = type_errors(), {''}

local function add_result(i, code, ...)
  codes[i] = code
  for at = 1, select('#', ...) do
    reply[#reply + 1] = select(at, ...)
  end
end

if not codes then
  keep_loss(members)
  codes = {}
  for i = 1, #writings do
    add_result(i, save(unpack(writings[i], 1, 11)))
    if i % CHECKED == 0 and out_of_time(ARGV[5]) then
      break
    end
  end
  write_scores()
  if earliest
    and (earliest <= now or (earliest < now + longest_wait and no_earlier_than(earliest))) then
    -- An error of PUBLISH is ignored, because the Redis user may have no right to publish. A beat
    -- that receives no message finds the due entry at its next tick.
    redis.pcall('PUBLISH', channel, 'due')
  end
end
reply[1] = table.concat(codes, ' ')
return reply
