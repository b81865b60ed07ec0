-- Handle one request of a beat. A request is called a turn. The script extends or acquires the
-- lock, records completions, and claims due entries.
--
-- KEYS[1]  The schedule (zset: entry key -> due, UNIX seconds). An entry with a score below 0 is
--          parked, that is, never due.
-- KEYS[2]  The names of the static entries (set).
-- KEYS[3]  The quarantine (hash).
-- KEYS[4]  The beats (zset: token -> last seen, UNIX seconds). If a beat uses the lock, ' lock' is
--          appended to its token. Beats that use no lock share the due entries.
-- KEYS[5]  The stats (hash: counter -> value), see metrics/counters.py.
-- KEYS[6]  The last turn of the caller, a string of three words: the turn id, the end of the claims
--          of the turn, and the codes of its completions.
-- KEYS[7]  The entries whose run could not be sent (zset: entry key -> when the run was due), see
--          still_fails.lua.
-- KEYS[8]  The calendars (hash: name -> JSON).
-- KEYS[9]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[10] The lock (string), omitted if locking is off.
-- ARGV[1]  The key prefix.
-- ARGV[2]  The id of this turn, which is also the id of the new claims.
-- ARGV[3]  The limit: the maximum number of entries to claim.
-- ARGV[4]  The lease: the number of seconds until the new claims expire.
-- ARGV[5]  The token of the caller.
-- ARGV[6]  The time to live of the lock, in milliseconds.
-- ARGV[7]  The token of a leader that the caller assumes to be dead, or ''.
-- ARGV[8]  The number of seconds after which an entry key without a definition is due again.
-- ARGV[9]  The sizes in bytes of the fields in the next argument, as big-endian integers of four
--          bytes.
-- ARGV[10] The fields of all completions, joined without separators; fifteen fields per completion.
-- ARGV[11] '1' if the caller repeats a call whose reply was lost. A repeated call does not record a
--          completion twice, and returns the claims of the earlier call. A repeated call makes new
--          claims only if the earlier call made no claims. The turn ids of a beat end with an
--          increasing number, so that the script recognizes a delayed copy of an earlier call, and
--          makes no claims for this copy.
-- ARGV[12] The maximum number of history lines per entry (the latest lines are kept); 0 for no
--          history.
-- ARGV[13] The id of the counts, or '' for no counts. Counts with the same id are added only once.
-- ARGV[14] The sizes in bytes of the fields in the next argument, as big-endian integers of four
--          bytes.
-- ARGV[15] The fields of all counts, joined without separators. Each count has two fields: a field
--          of the stats, and the amount to add to this field.
-- ARGV[16] The key of the only entry to claim, even if this entry is not due; '' to claim all due
--          entries.
-- ARGV[17] The default delivery: 'l' if a run may be sent before it is recorded, 'x' if a run may
--          be sent only together with its record or after its record.
-- ARGV[18] The Redis server of the broker: '<run id of the server> <database of the broker>
--          <database of the schedule>', or '' if this script cannot send messages.
-- ARGV[19] The maximum number of claims for entries that are more than a second late; '' for no
--          maximum. With a maximum for late entries, the script claims the entries on time first;
--          without a maximum, the script claims all entries in due order.
-- ARGV[20] The number of seconds after which no more entries are claimed, so that Redis can serve
--          other clients.
-- ARGV[21] '1' if the caller has nothing to record, and either holds the lock or uses no lock. If
--          the caller has nothing to record, and entries are due later but not now, this script
--          only extends the lock and returns {now, next score, members}.
-- ARGV[22] For a standby, the token of the beat that held the lock at the last call of the standby;
--          else ''. If the leader has not changed since the last call of a standby, this script
--          only returns {now, PTTL of the lock in ms} to the standby.
--
-- If the Redis user has no access to a key, the caller passes the schedule key in place of this
-- key; see aside.lua.
--
-- Returns a list of fourteen values: standing, now, next_score, members, statics, quarantined,
-- holder, pttl, codes, texts, kinds, sizes, fields and expires.
--   `standing` is 1 for the leader or without a lock, 2 for a new leader (which gets no claims
--     yet), 0 for a standby.
--   `now` is the time of Redis, in UNIX seconds.
--   `next_score` is the score of the entry that is due next, or ''.
--   `members`, `statics` and `quarantined` are the numbers of all entries, of static entries and of
--     quarantined entries.
--   `holder` is the token of the beat that holds the lock.
--   `pttl` is the number of milliseconds until the lock expires.
--   `codes` has a digit per completion, and `texts` has the strings that belong to the codes.
--   Code 0 means that nothing is recorded, because the caller no longer holds the claim.
--   Code 1 means that the completion is recorded, by this call or by an earlier call whose reply
--     was lost.
--   Code 2 means that nothing is recorded, because the entry was changed; `texts` has the stored
--     definition, policy and meta.
--   Code 3 means that nothing is recorded, because Redis refused a message; `texts` has the error.
--   Code 4 means that nothing is recorded, because the broker is on another server.
--   Code 5 means that an earlier call recorded the completion and another run was recorded since,
--     or that the completion skips an edited entry, so that this call only ended the claim.
--   Code 6 means that nothing is recorded and no message is sent, because the claim has expired;
--     the next claim of the entry decides whether the run is too late.
--   Code 7 means that nothing is recorded and no message is sent, because a calendar was changed.
--   With the codes 2, 3, 4 and 7, the caller still holds the claim.
--   `kinds` has a letter per claim: e if the entry is readable, g if its hash does not exist, x if
--     its key is not a hash.
--   `sizes` has the sizes in bytes of the fields of all claims, as big-endian integers of four
--     bytes.
--   `fields` has ten strings per claim: key, due, definition (for kind x, the error), meta, policy,
--     runtime, running, trigger, identity, since.
--     The string `running` is the time after which an earlier run counts as ended, or ''. If an
--       earlier claim may have sent the run, and a worker reported the end of the run, `running` is
--       '0'.
--     The string `trigger` has the waiting triggered runs in the format of trigger.lua, or is ''.
--     The string `since` is when the occurrence was first claimed, or '' if no earlier claim can
--       have sent its run.
--   `expires` is when the claims end.
--
-- A completion has fifteen fields: key, claim id, operation, end, score, meta, runtime, seen,
-- definition, running, trigger, line, messages, failure and calendars.
--   The operation `ran` writes meta, runtime and history, and sends the messages.
--   The operation `first` is like `ran`, but the caller sends the message after this call.
--   The operation `skip` skips the occurrence. For a skip, a new runtime changes the instant from
--     which the next run is computed, and a new meta may count the occurrence as a run.
--   The operation `retry` releases the claim of an occurrence that was not sent; the next claim has
--     the same due instant.
--   The operation `unsure` releases the claim of an occurrence that may have been sent; the next
--     claim also returns when the occurrence was first claimed.
--   `end` is '' if the entry has more runs, else what to do with the entry: 'park', 'disable' or
--     'delete'.
--   `score` is when the entry is due next, in UNIX seconds; a score below 0 parks the entry.
--   `meta` and `runtime` are the new JSON texts, or '' to keep the stored texts.
--   `seen` is '=' and the definition, policy and meta that the completion may replace, separated by
--     line feeds, or '' for the values at the time of the claim.
--   `definition` is the new definition if the end is 'disable'.
--   `running` is the task id of the run and its time limit in seconds, or ''. If the occurrence
--     waits until an earlier run ends, `running` is '-'.
--   `trigger` is the id of the waiting run to remove, or ''. A space and a new waiting run after
--     the id mean that the new run replaces the removed run.
--   `line` is a line for the history, or ''.
--   `messages` has the Redis commands that publish the run, in the form '<command> <size>...;...',
--     a line feed, and the joined arguments; '' for no message.
--   `failure` is why the run could not be sent, or ''. From the second failure on, `line` replaces
--     the history line of the previous failure, and the number of attempts is appended to `line`.
--   The fields `running`, `line` and `failure` are escaped as in JSON (a backslash as \u005c), but
--     have no quotes.
--   `calendars` names the calendars on which the completion depends, in the form '<SHA-1 of their
--     JSON, joined by line feeds>,<name>,<name>...'; '' for no calendars. If a calendar was
--     changed, a message that is still unsent is not sent. If a calendar was changed, a run that
--     was already sent is recorded, and the entry becomes due now.
--
-- The field `claim` of an entry is the JSON array ["<head>",<mark>,<mark>], see marks.lua. The head
-- of a claim has five words: claim id, when the occurrence was due, when the claim ends, when the
-- occurrence was first claimed, and the delivery ('l' or 'x') with the number of this format; see
-- read_claim.lua.
--
-- The field `identity` is a JSON string that distinguishes an entry from a deleted entry of the
-- same name. RedBeat sets the identity when it writes an entry. If another program wrote the entry,
-- the first claim sets the identity. An empty identity never changes.

local schedule, statics, quarantine, beats, lock = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[10]
local stats, last_turn, failing, calendars = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local prefix, turn_id, limit, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local token, ttl, dead, retry = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local reply_lost, lines = ARGV[11] == '1', tonumber(ARGV[12])
local only, default_delivery, broker, late_limit = ARGV[16], ARGV[17], ARGV[18], ARGV[19]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

-- A call that can return early must return before the functions of this script are created, because
-- their creation takes time.
if ARGV[21] == '1' and (not lock or redis.pcall('GET', lock) == token) then
  local first = redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if first and tonumber(first) > now then
    if lock then
      redis.call('PEXPIRE', lock, ttl)
    end
    return {string.format('%.6f', now), first, redis.call('ZCARD', schedule)}
  end
end

if ARGV[22] ~= '' and redis.pcall('GET', lock) == ARGV[22] then
  return {string.format('%.6f', now), redis.call('PTTL', lock)}
end

-- include: run_time

local function seconds(number)
  return string.format('%.6f', number)
end

local now_text = seconds(now)

-- include: sha1hex

-- include: marks

-- include: decoded

-- include: same_rules

-- include: aside

-- include: read_claim

-- include: still_fails

-- include: text_in

-- include: look_for_loss

local function keep_lock()
  if not lock then
    return 1, '', 0
  end
  local holder = redis.pcall('GET', lock)
  if type(holder) == 'table' then
    return 0, 'a key that is not a lock', redis.call('PTTL', lock)
  end
  if holder == token then
    return 1, token, tonumber(ttl)
  end
  if not holder or (dead ~= '' and holder == dead) then
    redis.call('SET', lock, token, 'PX', ttl)
    return 2, token, tonumber(ttl)
  end
  return 0, holder, redis.call('PTTL', lock)
end

-- A flat list of the scores to write, in which each score is followed by its member. One ZADD for
-- many entries is faster than a ZADD per entry.
local scores = {}

local function score_later(score, member)
  scores[#scores + 1] = score
  scores[#scores + 1] = member
end

local function write_scores(flag)
  for first = 1, #scores, 2000 do
    local last = math.min(first + 1999, #scores)
    redis.call('ZADD', schedule, flag, unpack(scores, first, last))
  end
  scores = {}
end

-- Records that a run is active, unless the end of this run was already recorded.
local function mark_running(key, running)
  local id, timeout = string.match(running, '^(.*) (%S+)$')
  if redis.call('HGET', key, 'ended') ~= '"' .. id .. '"' then
    redis.call('HSET', key, 'running', '"' .. id .. ' ' .. seconds(now + tonumber(timeout)) .. '"')
  end
  redis.call('HDEL', key, 'ended')
end

-- Returns whether the field `trigger` contains waiting runs. Another program may have written a
-- field `trigger` that contains only spaces.
local function has_waiting(trigger)
  return trigger and string.find(text_in(trigger), '%S')
end

-- Returns the waiting runs without the run whose id is `id`. If a run was removed and `successor`
-- is not empty, the waiting run `successor` is appended to the list.
local function remaining_triggers(waiting, id, successor)
  local left, last = {}, nil
  for run in string.gmatch(waiting, '%S+') do
    if run ~= id and string.sub(run, 1, #id + 1) ~= id .. ':' then
      left[#left + 1] = run
    elseif successor ~= '' then
      last = successor
    end
  end
  left[#left + 1] = last
  return table.concat(left, ' ')
end

-- Returns the time from which the first waiting run may be sent, nil if no run may be sent.
-- While an entry is disabled, its backfills are not sent. A run that was triggered manually may be
-- sent at once.
local function first_ready(waiting, disabled)
  local first
  for run in string.gmatch(waiting, '%S+') do
    local backfill = string.find(run, '/', 1, true)
    local at = string.match(run, ':([^:]*)$')
    if not backfill or (at ~= 'done' and not disabled) then
      at = backfill and tonumber(at) or 0
      first = first and math.min(first, at) or at
    end
  end
  return first
end

local function escaped(character)
  return character == '\n' and '\\n' or ''
end

-- Returns the latest history lines that remain when a new line is added, followed by the closing
-- quote of the JSON string. Each history line ends with the two characters \n, the escape of a line
-- feed in JSON. The Python function json_text ensures that the two characters \n appear only at the
-- end of a line.
local function trimmed_history(history)
  if text_in(history) == history then
    -- Another program wrote the history as plain text instead of a JSON string.
    history = '"' .. string.gsub(history, '[%c"\\]', escaped) .. '"'
  end
  local at = 1
  for _ = 2, lines do
    local _, last = string.find(history, '\\n', at + 1, true)
    if not last then
      return string.sub(history, 2)
    end
    at = last
  end
  return string.sub(history, 2, at) .. '"'
end

local function write_history(key, meta, runtime, line, history)
  if line ~= '' and lines > 0 then
    line = '"' .. line .. '\\n' .. trimmed_history(history)
  else
    line = ''
  end
  local fields = {}
  if meta ~= '' then
    fields[1], fields[2] = 'meta', meta
  end
  if runtime ~= '' then
    fields[#fields + 1], fields[#fields + 2] = 'runtime', runtime
  end
  if line ~= '' then
    fields[#fields + 1], fields[#fields + 2] = 'history', line
  end
  if #fields > 0 then
    redis.call('HSET', key, unpack(fields))
  end
end

-- The failure text that is stored for a run whose claim expired.
local UNRECORDED = 'a beat claimed the run and recorded nothing: the beat died or stalled'

-- Stores that a run could not be sent. Returns the new history line, and the stored history to
-- which this line must be added.
local function write_failure(key, claim, field, failure, line, history)
  local text, attempts = failure_after(field, now_text, failure)
  redis.call('HSET', key, 'failing', text)
  local _, due = read_claim(claim)
  aside('ZADD', failing, due or now_text, key)
  if line ~= '' and attempts > 1 then
    local last = '^"' .. string.gsub(string.match(line, '^%S+'), '%p', '%%%0') ..
      ' %S+ failed:[%w_]+:%d+\\n'
    local _, stop = string.find(history, last)
    if stop then
      history = '"' .. string.sub(history, stop + 1)
    end
    line = line .. ':' .. attempts
  end
  return line, history
end

local function end_failure(key)
  redis.call('HDEL', key, 'failing')
  aside('ZREM', failing, key)
end

-- The score of a disabled entry.
local DISABLED = -2

local REFUSED, RECORDED, CHANGED, NOT_SENT, ELSEWHERE, OVERTAKEN = 0, 1, 2, 3, 4, 5
local EXPIRED, OUTDATED = 6, 7

-- The strings that the script returns as `texts`.
local texts = {}

local function add_texts(...)
  for _, text in ipairs({...}) do
    texts[#texts + 1] = text
  end
end

local run_id, broker_db, own_db = string.match(broker, '^(%S+) (%S+) (%S+)$')
local is_brokers_server

-- Returns whether the broker uses this Redis server. The function calls INFO at most once per turn.
local function broker_is_here()
  if is_brokers_server == nil then
    local info = run_id and redis.pcall('INFO', 'server')
    is_brokers_server = type(info) == 'string' and
      string.find(info, 'run_id:' .. run_id, 1, true) ~= nil
  end
  return is_brokers_server
end

local function commands_in(messages)
  local stop = string.find(messages, '\n', 1, true)
  local commands, start = {}, stop + 1
  for name, sizes in string.gmatch(string.sub(messages, 1, stop), '(%u+)([ %d]*);') do
    local command = {name}
    for size in string.gmatch(sizes, '%d+') do
      command[#command + 1] = string.sub(messages, start, start + size - 1)
      start = start + size
    end
    commands[#commands + 1] = command
  end
  return commands
end

-- The queues that queue_problem() checked without finding a problem.
local queues = {}

-- Returns why a message cannot be added to a queue, or nil if a message can be added.
local function queue_problem(key)
  if not queues[key] then
    local kind = redis.pcall('TYPE', key)
    if kind.err then
      return kind.err
    end
    if kind.ok ~= 'list' and kind.ok ~= 'none' then
      return 'WRONGTYPE the queue ' .. key .. ' must be a list, but is a ' .. kind.ok
    end
    queues[key] = true
  end
  return nil
end

-- Runs the commands that publish a message, either all of the commands or none. Returns why the
-- message was not sent, or nil if the message was sent.
local function run_commands(commands)
  for _, command in ipairs(commands) do
    local why = command[1] == 'LPUSH' and queue_problem(command[2])
    if why then
      return why
    end
  end
  for i, command in ipairs(commands) do
    local reply = redis.pcall(unpack(command))
    -- Redis checks the memory limit only before the first write of a script, so only the first
    -- command can fail for lack of memory. If any command after the first command fails, the
    -- message counts as sent.
    if i == 1 and type(reply) == 'table' and reply.err then
      return reply.err
    end
  end
  return nil
end

local function send_messages(messages)
  if not broker_is_here() then
    return ELSEWHERE
  end
  local other_db = broker_db ~= own_db
  local problem = other_db and redis.pcall('SELECT', broker_db).err
  if not problem then
    problem = run_commands(commands_in(messages))
    if other_db then
      redis.call('SELECT', own_db)
    end
  end
  if problem then
    add_texts(problem)
    return NOT_SENT
  end
  return RECORDED
end

-- Releases a claim without completing its occurrence. A released claim still contains when its
-- occurrence was due. If a message may have been sent (`unsure`), the released claim also contains
-- when the occurrence was first claimed.
local function put_back(key, claim, unsure)
  local _, due, _, since, delivery = read_claim(claim)
  local rest = string.sub(claim, (string.find(claim, '"', 3, true) or #claim) + 1)
  local decided = unsure and since and (since .. ' l') or '- ' .. (delivery or 'l')
  redis.call('HSET', key, 'claim', '["' .. put_back_head(due or now_text, decided) .. '"' .. rest)
end

-- Removes or replaces a waiting run. Returns when the first of the remaining waiting runs may be
-- sent, or nil if no waiting run may be sent.
local function forget_trigger(key, waiting, run, disabled)
  local left = has_waiting(waiting) and text_in(waiting) or ''
  if left == '' then
    return nil
  end
  if run ~= '' then
    left = remaining_triggers(left, string.match(run, '^(%S+) ?(%S*)$'))
    if left ~= '' then
      redis.call('HSET', key, 'trigger', '"' .. left .. '"')
    else
      redis.call('HDEL', key, 'trigger')
    end
  end
  return first_ready(left, disabled)
end

-- Returns whether an earlier claim may have sent the run of `claim`.
local function was_sent_before(claim)
  local _, _, ends, since, delivery = read_claim(claim)
  return delivery == 'l' and (tonumber(since) or now) < ends - lease - 0.00001
end

-- A cache of the results of have_changed(). The function gets the field `calendars` of a
-- completion, and returns whether a calendar was changed after the beat read the calendar.
local changed = {['']=false}

local function have_changed(named)
  if changed[named] == nil then
    local digest, names = string.match(named, '^(%x*),(.*)$')
    local found = {}
    for name in string.gmatch(names, '[^,]+') do
      local text = redis.pcall('HGET', calendars, name)
      found[#found + 1] = type(text) == 'string' and text or ''
    end
    -- Without redis.sha1hex, which a fake Redis server in tests may lack, no calendar counts as
    -- changed.
    changed[named] = redis.sha1hex and redis.sha1hex(table.concat(found, '\n')) ~= digest or false
  end
  return changed[named]
end

-- The number of members that this script deleted.
local gone = 0

local function complete(
  key, id, operation, ending, score, meta, runtime, seen, definition, running, run, line, messages,
  failure, based_on)
  local found = redis.pcall(
    'HMGET', key, 'claim', 'definition', 'policy', 'meta', 'trigger', 'history', 'failing')
  if found.err or not found[1] or not found[2] then
    return REFUSED
  end
  local claim = found[1]
  if string.sub(claim, 1, #id + 3) ~= '["' .. id .. ' ' then
    return REFUSED
  end
  local outdated = have_changed(based_on)
  if messages ~= '' or operation == 'first' then
    local _, _, ends = read_claim(claim)
    if ends < now then
      return EXPIRED
    end
    if outdated then
      return OUTDATED
    end
  end
  operation = operation == 'first' and 'ran' or operation
  local same, code = made_of(claim, found[2], found[3], found[4]), RECORDED
  if not same or outdated then
    -- If the entry or a calendar was changed after the claim, make the entry due now, so that the
    -- next claim decides with the new values.
    if operation == 'ran' or messages ~= '' then
      local stored = found[2] .. '\n' .. (found[3] or '') .. '\n' .. (found[4] or '')
      if not same and seen ~= '=' .. stored then
        add_texts(found[2], found[3] or '', found[4] or '')
        return CHANGED
      end
    elseif operation == 'skip' then
      runtime, meta, line = '', '', ''
      code = run == '' and OVERTAKEN or RECORDED
      -- If an earlier claim may have sent the run, the next claim must repeat the decision of the
      -- earlier claim.
      operation = was_sent_before(claim) and 'unsure' or operation
    end
    score, ending = now_text, ''
  end
  if messages ~= '' then
    local sent = send_messages(messages)
    if sent ~= RECORDED then
      return sent
    end
  end
  local ready = forget_trigger(key, found[5], run, tonumber(score) == DISABLED)
  local history = found[6] or ''
  local put_back_again = operation == 'retry' or operation == 'unsure'
  if failure ~= '' then
    line, history = write_failure(key, claim, found[7], failure, line, history)
  elseif found[7] and (run ~= '' or not put_back_again) then
    end_failure(key)
  end
  if ending == 'delete' and not ready then
    redis.call('DEL', key)
    gone = gone + redis.call('ZREM', schedule, key)
    return RECORDED
  end
  if ending == 'disable' then
    redis.call('HSET', key, 'definition', definition)
  end
  if running == '-' then
    if redis.call('HEXISTS', key, 'running') == 0 then
      score = now_text  -- the earlier run ended after the claim
    end
  elseif running ~= '' then
    mark_running(key, running)
  end
  write_history(key, meta, runtime, line, history)
  if put_back_again then
    put_back(key, claim, operation == 'unsure')
  else
    if meta == '' then
      -- If the memory of Redis is full, HSET fails but HDEL does not. Write an empty claim before
      -- HDEL, so that the whole completion fails if the memory is full.
      redis.call('HSET', key, 'claim', '')
    end
    redis.call('HDEL', key, 'claim')
    if ready and (tonumber(score) < 0 or ready < tonumber(score)) then
      score = seconds(math.max(ready, now))
    end
  end
  score_later(score, key)
  return code
end

-- include: row_reader

-- include: row_sizes

local read_completion, read_count, packed_sizes = row_reader(15), row_reader(2), row_sizes(10)

-- Returns three values about the last turn of the caller: the id of the turn, when the claims of
-- the turn end, and the codes of its completions. Returns nil if the last turn is unknown.
local function read_last_turn()
  local found = aside('GET', last_turn)
  return string.match(type(found) == 'string' and found or '', '^(%S+) (%S+) (%d*)$')
end

-- Returns whether this call is a delayed copy of a call that the caller has already repeated. The
-- caller no longer reads the reply to a delayed copy, so no beat would use the claims in that
-- reply.
local function is_late_copy()
  local last = read_last_turn()
  if not last or last == turn_id then
    return last == turn_id and not reply_lost
  end
  local beat, number = string.match(last, '^(.*)%-(%d+)$')
  local own_beat, own_number = string.match(turn_id, '^(.*)%-(%d+)$')
  return beat ~= nil and beat == own_beat and tonumber(number) > tonumber(own_number)
end

local function complete_all(sizes, packed, known)
  local codes, fields, start = {}, nil, 1
  for at = 1, #sizes, 60 do
    fields, start = read_completion(sizes, at, packed, start)
    local place = #codes + 1
    local code = tonumber(string.sub(known, place, place))
    if code == RECORDED or code == OVERTAKEN then
      -- An earlier call whose reply was lost has already recorded this completion.
      local runtime = fields[7]
      local latest = runtime == '' or redis.pcall('HGET', fields[1], 'runtime') == runtime
        or (fields[4] == 'delete' and redis.call('TYPE', fields[1]).ok == 'none')
      codes[place] = latest and code or OVERTAKEN
    else
      codes[place] = complete(unpack(fields, 1, 15))
    end
  end
  write_scores('XX')
  return table.concat(codes)
end

local function read(member)
  local found = redis.pcall(
    'HMGET', member, 'definition', 'meta', 'policy', 'runtime', 'claim', 'running', 'ended',
    'trigger', 'identity', 'failing')
  if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then
    error(found.err)  -- an error other than WRONGTYPE would occur for every key
  end
  return found, found.err
end

-- `replaced` has the entry names to remove from the schedule, because entry keys replace the names.
-- Entry names are removed only after the entry keys are added, because ZADD may fail if the memory
-- of Redis is full.
local replaced = {}

-- Returns the entry key for a member of the schedule, the fields of the entry, and an error or nil.
-- If another program added an entry name to the schedule instead of an entry key, the entry key
-- replaces the name. A key without the prefix is never read, because the script would fail if the
-- key were in another cluster slot, or if the Redis user had no access to the key.
local function resolve(member)
  local found, err = {}, nil
  if string.sub(member, 1, #prefix) == prefix then
    found, err = read(member)
  end
  if err or found[1] then
    return member, found, err
  end
  local named = prefix .. member
  local other, other_err = read(named)
  if other_err or not other[1] then
    return member, found, nil
  end
  replaced[#replaced + 1] = member
  return named, other, nil
end

-- If locking is off, each active beat claims an equal share of the due entries, but at least
-- SMALLEST_SHARE entries. A beat is active if it was seen in the last SEEN_WITHIN seconds. A beat
-- that was not seen for FORGET_AFTER seconds is removed from the list of beats.
local SMALLEST_SHARE, SEEN_WITHIN, FORGET_AFTER = 25, 10, 60

-- The number of seconds for which Redis stores the last turn of a beat. If the reply to a turn is
-- lost, and the beat repeats the call, this script reads the stored turn.
local REMEMBERED = 300

-- Records that a beat was seen now. Returns 1 if the beat is new in the sorted set `beats`.
local function record_presence(call, member)
  local added = call('ZADD', beats, now_text, member)
  if type(added) == 'number' then
    call('EXPIRE', beats, FORGET_AFTER)
    call('ZREMRANGEBYSCORE', beats, '-inf', seconds(now - FORGET_AFTER))
  end
  return added
end

local function share()
  if beats == schedule then
    return limit
  end
  if record_presence(redis.call, token) == 1 then
    -- Remove the stored problem, because a dead beat may have stored the problem. If an active beat
    -- still has a problem, this beat stores the problem again.
    redis.pcall('HDEL', stats, 'problem')
  end
  local present = 0
  for _, beat in ipairs(redis.call(
    'ZRANGEBYSCORE', beats, seconds(now - SEEN_WITHIN), seconds(now + SEEN_WITHIN))) do
    present = present + (string.sub(beat, -5) == ' lock' and 0 or 1)
  end
  if present < 2 then
    return limit
  end
  local due = redis.call('ZCOUNT', schedule, 0, now_text)
  return math.min(limit, math.max(math.ceil(due / present), SMALLEST_SHARE))
end

-- Adds the counts to the stats. If the caller does not stand by, the number of members is noted,
-- too. Errors are ignored, because a failed count must not abort the script.
local function add_counts(standing, members, id, sizes, packed)
  local found = id ~= '' and stats ~= schedule and redis.pcall('HMGET', stats, 'batch', 'members')
  if not found or found[1] == id then
    return
  end
  if standing > 0 then
    local before = members + gone
    note_in_stats('batch', id, 'last_tick', now_text, look_for_loss(found[2], before, members))
  else
    note_in_stats('batch', id, 'last_tick', now_text)
  end
  local count, start = nil, 1
  for at = 1, #sizes, 8 do
    count, start = read_count(sizes, at, packed, start)
    redis.pcall('HINCRBY', stats, count[1], count[2])
  end
end

local standing, holder, pttl = keep_lock()
if not lock and token ~= '' then
  limit = share()
end

local earlier, earlier_end, known
if reply_lost then
  earlier, earlier_end, known = read_last_turn()
  if earlier ~= turn_id then
    earlier, known = nil, nil
  end
end

local codes = complete_all(ARGV[9], ARGV[10], known or '')

local kinds, sizes, fields = {}, {}, {}

-- Total size of the claimed entries in bytes. When the claimed entries exceed MOST_BYTES, the
-- remaining due entries wait for the next turn.
local MOST_BYTES, bytes = 4194304, 0
-- After MOST_SECONDS, the remaining due entries wait for the next turn. The limit of MOST_SECONDS
-- applies only after SMALLEST_BATCH entries or SMALLEST_BYTES of entries are claimed. The reply,
-- which takes about BYTE_SECONDS per byte, counts as part of the time of the turn.
local MOST_SECONDS, SMALLEST_BATCH, SMALLEST_BYTES = tonumber(ARGV[20]), 50, 262144
local BYTE_SECONDS = 0.000000004

local function is_time_over()
  return (#kinds >= SMALLEST_BATCH or bytes >= SMALLEST_BYTES)
    and run_time() + bytes * BYTE_SECONDS > MOST_SECONDS
end

-- The script searches for a time only in the last LONGEST_TIME characters of `running`. The pattern
-- '%S+$' takes quadratic time, so a field of 30 KB from another program would block Redis for
-- seconds.
local LONGEST_TIME = 64
-- An identity of more than LONGEST_IDENTITY bytes counts as empty.
local LONGEST_IDENTITY = 200

local function add_claim(
  kind, key, due, definition, meta, policy, runtime, running, trigger, identity, since)
  definition, meta, policy, runtime = definition or '', meta or '', policy or '', runtime or ''
  running = running and string.match(string.sub(text_in(running), -LONGEST_TIME), '%S+$') or ''
  trigger = has_waiting(trigger) and text_in(trigger) or ''
  identity = identity and #identity <= LONGEST_IDENTITY and text_in(identity) or ''
  since = since or ''
  kinds[#kinds + 1] = kind
  sizes[#sizes + 1] = packed_sizes(
    #key, #due, #definition, #meta, #policy, #runtime, #running, #trigger, #identity, #since)
  bytes = bytes + #definition + #meta + #policy + #runtime + #trigger
  local at = #fields
  fields[at + 1], fields[at + 2], fields[at + 3], fields[at + 4] = key, due, definition, meta
  fields[at + 5], fields[at + 6], fields[at + 7], fields[at + 8] = policy, runtime, running, trigger
  fields[at + 9], fields[at + 10] = identity, since
end

local lease_end = seconds(now + lease)
local retry_at = seconds(now + retry)

-- Returns a new identity for an entry that has no identity. A new identity is computed from the
-- definition and the meta, so a later claim computes the same identity if Redis loses its last
-- writes.
local function new_identity(definition, meta)
  local text = redis.sha1hex and redis.sha1hex(definition .. '\n' .. (meta or ''))
    or string.format('%x', math.floor(now * 1000000) % 4294967296)
  return '"' .. string.sub(text, 1, 8) .. '"'
end

-- Adds to the reply the claims of the earlier call whose reply was lost. All entries that a call
-- claims have the same score. Returns whether the earlier call made any claims.
local function repeat_claims()
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', schedule, earlier_end, earlier_end)) do
    local found, err = read(key)
    if not err and found[1] and found[5] then
      local id, due, _, since, delivery = read_claim(found[5])
      if id == turn_id then
        local before = delivery == 'l' and (tonumber(since) or now) < earlier_end - lease - 0.00001
        add_claim('e', key, due, found[1], found[2], found[3], found[4], found[6], found[8],
          found[9], before and since or '')
      end
    end
  end
  if #kinds > 0 then
    lease_end = earlier_end
  end
  return #kinds > 0
end

local DELIVERIES = {at_least_once = 'l', at_most_once = 'x'}

-- Returns the delivery of an entry: from its policy, else from its definition, else the default.
local function delivery_of(definition, policy)
  for _, text in ipairs({policy or '', definition}) do
    local chosen = string.find(text, '"delivery"', 1, true) and (decoded(text) or {}).delivery
    if chosen then
      return DELIVERIES[chosen] or default_delivery
    end
  end
  return default_delivery
end

-- The value of `running` in a claim if a worker reported the end of the run before the run was
-- recorded.
local RUN_ENDED = '0'

-- If a claim has an unknown format and contains no end, this script leaves the claim unchanged for
-- HELD seconds.
local HELD = 60

-- Returns when a claim of unknown format without an end counts as ended, and the score that the
-- entry had when this function was first called for the claim. The field `unread` of an entry is
-- ["<time of the first call> <score at the first call>","<digest of the claim>"].
local function held_until(key, claim, due)
  local digest, field = string.sub(sha1hex(claim), 1, 40), redis.call('HGET', key, 'unread') or ''
  local first, score, of = string.match(string.sub(field, 1, 200), '^%["(%S+) (%S+)","(%S+)"%]$')
  first, score = tonumber(instant(first)), instant(score)
  if of ~= digest or not first or not score or first > now then
    first, score = now, due
    redis.call('HSET', key, 'unread', '["' .. now_text .. ' ' .. due .. '","' .. digest .. '"]')
  end
  if first + HELD <= now then
    redis.call('HDEL', key, 'unread')
  end
  return first + HELD, score
end

-- Claims an entry. Returns the time when the claim expires; this time becomes the score of the
-- entry.
local function claim(key, found, due)
  local first, delivery, since = now_text, delivery_of(found[1], found[3]), ''
  if found[5] then
    local id, was_due, expires, decided, old_delivery, unread = read_claim(found[5], now)
    if expires > now then
      return seconds(math.min(expires, now + lease))
    end
    if unread and expires == 0 then
      local held, score = held_until(key, found[5], due)
      if held > now then
        return seconds(held)
      end
      due = score
    end
    due = was_due or due
    if id ~= '-' and tonumber(was_due) then
      -- Each claim sets a later score, so without a stored failure, an entry whose run kills each
      -- beat would never count as late.
      write_failure(key, found[5], found[10], UNRECORDED, '', '')
    end
    local may_be_sent = old_delivery == 'l' and tonumber(decided)
    if may_be_sent and same_rules(found[5], found[1], found[3], found[2]) then
      -- If an earlier claim may have sent the run, the caller must repeat the decision of the first
      -- claim.
      first, delivery, since = decided, old_delivery, decided
    end
  end
  local head = table.concat({turn_id, due, lease_end, first, delivery .. FORMAT}, ' ')
  local text = claim_text(head, found[1], found[3], found[2])
  if found[9] then
    redis.call('HSET', key, 'claim', text)
  else
    -- If an earlier claim may have sent the run while the entry had no identity, an empty identity
    -- keeps the task id of the run.
    found[9] = found[5] and '""' or new_identity(found[1], found[2])
    redis.call('HSET', key, 'claim', text, 'identity', found[9])
  end
  local running = found[6]
  if found[7] then
    -- The field `ended` may be about an earlier message with the same task id, so remove the field.
    redis.call('HDEL', key, 'ended')
    running = since ~= '' and RUN_ENDED or running
  end
  add_claim('e', key, due, found[1], found[2], found[3], found[4], running, found[8], found[9],
    since)
  return lease_end
end

-- Returns a score without an exponent: since version 7.2, Redis returns the score
-- 1795662649.8554249 as 1.7956626498554249e+9.
local function plain_score(score)
  return string.find(score, 'e', 1, true) and string.format('%.17g', tonumber(score)) or score
end

local function due_members()
  if only ~= '' then
    return {only, redis.call('ZSCORE', schedule, only) or now_text}
  end
  if late_limit == '' then
    return redis.call('ZRANGEBYSCORE', schedule, 0, now_text, 'WITHSCORES', 'LIMIT', 0, limit)
  end
  local on_time = seconds(now - 1)
  local found = redis.call(
    'ZRANGEBYSCORE', schedule, on_time, now_text, 'WITHSCORES', 'LIMIT', 0, limit)
  local late = redis.call(
    'ZRANGEBYSCORE', schedule, 0, '(' .. on_time, 'WITHSCORES', 'LIMIT', 0,
    math.min(limit - #found / 2, tonumber(late_limit)))
  for i = 1, #late do
    found[#found + 1] = late[i]
  end
  return found
end

if standing == 1 and limit > 0 and not (earlier and repeat_claims()) then
  local members = due_members()
  if #members > 0 and is_late_copy() then
    members = {}
  end
  for i = 1, #members, 2 do
    if bytes > MOST_BYTES or (i % 8 == 1 and is_time_over()) then
      break
    end
    local key, found, err = resolve(members[i])
    local due = plain_score(members[i + 1])
    if not instant(due) or tonumber(due) == 0 then
      due = now_text
    end
    local again = retry_at
    if err then
      add_claim('x', key, due, tostring(err))
    elseif not found[1] then
      add_claim('g', key, due)
    else
      again = claim(key, found, due)
    end
    if found[1] or only == '' then
      score_later(again, key)
    end
  end
  write_scores('CH')
  for _, member in ipairs(replaced) do
    redis.call('ZREM', schedule, member)
  end
end

if lock and beats ~= schedule then
  -- redis.pcall ignores errors, because a standby must also work if the memory of Redis is full, or
  -- if the server is a read-only replica. record_presence() must come after the claims: its ZADD
  -- may be the first write of the script, and Redis checks the memory limit only before the first
  -- write.
  record_presence(redis.pcall, token .. ' lock')
end
if lock and standing == 2 then
  note_in_stats('leader', now_text .. ' ' .. token)
  redis.pcall('HDEL', stats, 'problem')  -- remove the problem of the previous leader
end
local members = redis.call('ZCARD', schedule)
add_counts(standing, members, ARGV[13], ARGV[14], ARGV[15])
if last_turn ~= schedule and (#kinds > 0 or reply_lost or string.find(codes, '[15]')) then
  redis.pcall('SET', last_turn, turn_id .. ' ' .. lease_end .. ' ' .. codes, 'EX', REMEMBERED)
end

if lock and standing == 1 then
  -- PEXPIRE must be the last write of the script. Redis checks the memory limit only before the
  -- first write of a script, so all writes after a PEXPIRE would bypass the limit.
  redis.call('PEXPIRE', lock, ttl)
end

-- If the rate limit allowed no claim, return the score of the first entry that is not due yet.
local least = late_limit ~= '' and #kinds == 0 and '(' .. now_text or 0
local first = redis.call('ZRANGEBYSCORE', schedule, least, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {
  standing, now_text, first[2] or '', members,
  redis.call('SCARD', statics), aside('HLEN', quarantine), holder, pttl,
  codes, texts, table.concat(kinds), table.concat(sizes), table.concat(fields), lease_end}
