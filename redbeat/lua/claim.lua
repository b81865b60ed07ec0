-- Handle one request of a beat (a turn): extend or acquire the lock, record completions, and claim
-- due entries.
--
-- KEYS[1]  schedule (zset: entry key -> due, UNIX seconds; below 0 = parked, that is never due)
-- KEYS[2]  statics (set of names)
-- KEYS[3]  quarantine (hash). If the Redis user has no access to this key, or to one of the
--          next four keys, the caller passes the schedule key in its place; see aside.lua.
-- KEYS[4]  beats (zset: token -> last seen, UNIX seconds). If a beat uses the lock, ' lock' is
--          appended to its token. Beats that use no lock share the due entries.
-- KEYS[5]  stats (hash: counter -> value), see metrics/counters.py
-- KEYS[6]  the last turn of the caller (string): '<turn id> <when the claims of the turn end>
--          <codes of its completions>'
-- KEYS[7]  failing (zset: key of an entry whose run could not be sent -> when that run was due),
--          see still_fails.lua
-- KEYS[8]  calendars (hash: name -> JSON), or the schedule key
-- KEYS[9]  a key that never exists, so that a cluster answers TRYAGAIN while it moves the slot
-- KEYS[10] lock (string), omitted if locking is off
-- ARGV[1]  key prefix
-- ARGV[2]  id of this turn and of its claims
-- ARGV[3]  limit: maximum number of entries to claim
-- ARGV[4]  lease: seconds until the new claims expire
-- ARGV[5]  token of the caller
-- ARGV[6]  lock time to live, milliseconds
-- ARGV[7]  token of a leader that the caller assumes to be dead, or ''
-- ARGV[8]  retry: seconds until an entry key without a definition is due again
-- ARGV[9]  sizes of the fields in ARGV[10] in bytes, as big-endian integers of four bytes
-- ARGV[10] the fields of all completions, joined without separators: fifteen fields per completion,
--          listed below
-- ARGV[11] '1' if the reply to an earlier call with this turn id was lost. With '1', completions
--          that the earlier call recorded are not recorded again, and the claims of the earlier
--          call are returned again. New claims are made only if the earlier call made no claims.
--          The turn ids of a beat end with an increasing number, so that the script recognizes a
--          late copy of an earlier call, and makes no claims for this copy.
-- ARGV[12] maximum number of history lines per entry; 0 for no history. The latest lines are kept.
-- ARGV[13] id of the counts, '' for no counts; counts with the same id are added only once
-- ARGV[14] sizes of the fields in ARGV[15] in bytes, as big-endian integers of four bytes
-- ARGV[15] the fields of all counts, joined without separators; two per count: field of the stats,
--          amount to add
-- ARGV[16] key of the only entry to claim, even if this entry is not due; '' to claim all due
--          entries
-- ARGV[17] default delivery: 'l' if a run may be sent before it is recorded; 'x' if a run may be
--          sent only with its record or later
-- ARGV[18] the Redis server of the broker: '<run id of the server> <database of the broker>
--          <database of the schedule>', or '' if this script cannot send messages
-- ARGV[19] maximum number of claims for entries that are more than a second late; entries on time
--          are claimed first. '' for no limit: all entries are claimed in due order.
-- ARGV[20] seconds after which no more entries are claimed, so that Redis can serve other clients
-- ARGV[21] '1' if the caller holds the lock, or uses no lock, and has nothing to record. With '1',
--          if no entry is due now but an entry is due later, this script only extends the lock, and
--          returns {now, next score, members}.
-- ARGV[22] if the caller is a standby, the token of the beat that held the lock at the last call of
--          the caller; else ''. If that beat still holds the lock, this script only returns {now,
--          PTTL of the lock in ms}.
--
-- Returns {standing, now, next score or '', members, statics, quarantined, holder, holder's
--          PTTL in ms, codes, texts, kinds, sizes, fields, expires}
--   standing    1 leader (or no lock), 2 just became leader (nothing is claimed), 0 standby
--   members, statics, quarantined: numbers of entries
--   holder      token of the beat that holds the lock
--   codes       a digit per completion; some codes also add strings to `texts`:
--               0 refused: the caller no longer holds the claim
--               1 recorded, by this call or by the call whose reply was lost
--               2 the entry was changed: nothing is recorded, and the caller still holds the claim;
--                 texts: the stored definition, policy and meta
--               3 Redis refused a message: nothing is recorded, and the caller still holds the
--                 claim; texts: the error
--               4 the broker is on another server: nothing is recorded, and the caller still holds
--                 the claim
--               5 recorded by the call whose reply was lost, and another run was recorded after
--                 that; or the skip of an edited entry, for which this call only ended the claim
--               6 the claim has ended, and the message was not sent: nothing is recorded. The next
--                 claim of the entry decides whether the run is too late.
--               7 a calendar was changed, and the message was not sent: nothing is recorded, and
--                 the caller still holds the claim
--   kinds       a letter per claim: e readable, g the hash does not exist, x the key is not a hash
--   sizes       the sizes of the fields of all claims in bytes, as big-endian integers of four
--               bytes
--   fields      ten per claim: key, due, definition (for x the error), meta, policy, runtime,
--               the time after which an earlier run counts as ended or '' ('0' if an earlier claim
--               may have sent this run, and a worker reported the end of the run), waiting
--               triggered runs in the format of trigger.lua or '', identity of the entry, and when
--               the occurrence was first claimed ('' if no claim can have sent its run)
--   expires     when the claims end
--
-- A completion has these fields:
--   key, claim id
--   operation   ran: write meta, runtime and history, and send the messages.
--               first: like ran, but the caller sends the message after this call.
--               skip: skip the occurrence. A new runtime changes the instant from which the next
--               run is computed. A new meta may count the occurrence as a run.
--               retry: release the claim of an occurrence that was not sent. The next claim has the
--               same due instant.
--               unsure: release the claim of an occurrence that may have been sent. The next claim
--               also returns when the occurrence was first claimed.
--   end         '' if the entry has more runs, else what to do with the entry: 'park', 'disable' or
--               'delete'
--   score       when the entry is due next, UNIX seconds; below 0 = parked
--   meta, runtime: the new JSON, or '' to keep the stored JSON
--   seen        the definition, policy and meta that the completion may replace: '' for the values
--               at the time of the claim, else '=' and the three values, separated by line feeds
--   definition  the new definition if the end is 'disable'
--   running     the task id of the run and its time limit in seconds, or ''; '-' if the occurrence
--               waits until an earlier run ends. Escaped like `line`.
--   trigger     the id of the waiting run to remove, or ''. A space and a new waiting run may
--               follow; the new run replaces the removed run.
--   line        a line for the history, or ''. Escaped as in JSON (a backslash as \u005c), but
--               without quotes.
--   messages    Redis commands that publish the run, or '': '<command> <size>...;...', a line feed,
--               and the joined arguments
--   failure     why the run could not be sent, or ''. Escaped like `line`. From the second failure
--               on, `line` replaces the history line of the previous failure, and the number of
--               attempts is appended to `line`.
--   calendars   the calendars that the completion depends on, or '': '<SHA-1 of their JSON, joined
--               by line feeds>,<name>,<name>...'. If a calendar was changed, a message that is
--               still unsent is not sent. A run that was already sent is recorded, and the entry
--               becomes due now.
--
-- The field `claim` of an entry is ["<head>",<mark>,<mark>], see marks.lua. The head has five
-- words: claim id, when the occurrence was due, when the claim ends, when the occurrence was first
-- claimed, and the delivery ('l' or 'x', see ARGV[17]) with the number of this format; see
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

-- The following two cases come before the functions below, so that a call that returns here does
-- not spend time on the creation of these functions.
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

-- Scores to write: a flat list in which each score is followed by its member. One ZADD for many
-- entries is faster than a ZADD per entry.
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

-- Whether the field `trigger` contains waiting runs. If another program wrote the field, it may
-- contain only spaces.
local function has_waiting(trigger)
  return trigger and string.find(text_in(trigger), '%S')
end

-- Returns the waiting runs without the run that has this id. A `successor` that is not '' replaces
-- the removed run, but is appended to the end of the list.
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

-- Returns when the first of the waiting runs may be sent, or nil if no waiting run may be sent.
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

-- Returns the stored history lines that remain after a new line is added, followed by a quote. Each
-- line ends with the two characters \n, the escape of a line feed in JSON. The Python function
-- json_text ensures that these two characters appear only at the end of a line.
local function trimmed_history(history)
  if text_in(history) == history then
    -- Another program wrote this history, so it may lack the quotes and escapes of JSON.
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

-- The failure that is stored for a run whose claim expired.
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

-- The list `texts` of the reply.
local texts = {}

local function add_texts(...)
  for _, text in ipairs({...}) do
    texts[#texts + 1] = text
  end
end

local run_id, broker_db, own_db = string.match(broker, '^(%S+) (%S+) (%S+)$')
local is_brokers_server

-- Whether the broker uses this Redis server. INFO runs at most once per turn.
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

-- Runs all commands that publish a message, or none of these commands. Returns why the message was
-- not sent, or nil if it was sent.
local function run_commands(commands)
  for _, command in ipairs(commands) do
    local why = command[1] == 'LPUSH' and queue_problem(command[2])
    if why then
      return why
    end
  end
  for i, command in ipairs(commands) do
    local reply = redis.pcall(unpack(command))
    -- Redis checks the memory limit only before the first write of a script, so a later command
    -- does not fail for lack of memory. If it fails for another reason, the message counts as sent.
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

-- Releases a claim without completing its occurrence. The field `claim` still contains when the
-- occurrence was due. If a message may have been sent (`unsure`), the field also contains when the
-- occurrence was first claimed.
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

-- Whether an earlier claim may have sent the run of this claim.
local function was_sent_before(claim)
  local _, _, ends, since, delivery = read_claim(claim)
  return delivery == 'l' and (tonumber(since) or now) < ends - lease - 0.00001
end

-- The field `calendars` of a completion -> whether one of these calendars was changed after the
-- beat read the calendars.
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
    -- The entry or a calendar was changed after the claim. Make the entry due now, so that the next
    -- claim decides with the new values.
    if operation == 'ran' or messages ~= '' then
      local stored = found[2] .. '\n' .. (found[3] or '') .. '\n' .. (found[4] or '')
      if not same and seen ~= '=' .. stored then
        add_texts(found[2], found[3] or '', found[4] or '')
        return CHANGED
      end
    elseif operation == 'skip' then
      runtime, meta, line = '', '', ''
      code = run == '' and OVERTAKEN or RECORDED
      -- If an earlier claim may have sent the run, the next claim must repeat the decision of that
      -- claim.
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
    redis.call('ZREM', schedule, key)
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
      -- If the memory is full, the whole completion must fail. Write an empty claim first, because
      -- HSET fails if the memory is full, unlike HDEL.
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

-- Whether this call is a late copy of a call that the caller has already repeated. The caller no
-- longer reads the reply to a late copy, so no beat would use the claims in that reply.
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
      -- The call whose reply was lost already recorded this completion.
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
    error(found.err)  -- the error is not about this key, so all other keys would fail too
  end
  return found, found.err
end

-- Names to remove from the schedule because entry keys replace these names. The names are removed
-- only after the keys were added, because the ZADD that adds the keys may fail if the memory is
-- full.
local replaced = {}

-- Returns the entry key for a member of the schedule, the fields of the hash, and an error or nil.
-- If another program added an entry name to the schedule instead of an entry key, the key replaces
-- the name. Keys without the prefix are never read, because the script would fail if such a key
-- were in another cluster slot, or if the Redis user had no access to the key.
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

-- If locking is off, beats share the due entries. Each active beat claims an equal share, but at
-- least SMALLEST_SHARE entries. A beat is active if it was seen in the last SEEN_WITHIN seconds. A
-- beat that was not seen for FORGET_AFTER seconds is removed.
local SMALLEST_SHARE, SEEN_WITHIN, FORGET_AFTER = 25, 10, 60

-- Seconds for which Redis stores the last turn of a beat. The stored turn is needed if the reply is
-- lost and the beat repeats the call.
local REMEMBERED = 300

-- Records that a beat was seen now. Returns 1 if the beat was not in the sorted set `beats` before.
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
    -- Remove the stored problem, because it may be that of a dead beat. A beat that still has a
    -- problem stores it again.
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

-- Adds the counts to the stats. Errors are ignored, because a failed count must not abort the
-- script.
local function add_counts(id, sizes, packed)
  if id == '' or redis.pcall('HGET', stats, 'batch') == id then
    return
  end
  redis.pcall('HSET', stats, 'batch', id, 'last_tick', now_text)
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

-- Total size of the claimed entries in bytes. When the size exceeds MOST_BYTES, the remaining due
-- entries wait for the next turn.
local MOST_BYTES, bytes = 4194304, 0
-- The time limit applies only after SMALLEST_BATCH entries or SMALLEST_BYTES of entries are
-- claimed. After the time limit of MOST_SECONDS, the remaining due entries wait for the next turn.
-- The reply, which takes about BYTE_SECONDS per byte, counts as part of the time of the turn.
local MOST_SECONDS, SMALLEST_BATCH, SMALLEST_BYTES = tonumber(ARGV[20]), 50, 262144
local BYTE_SECONDS = 0.000000004

local function is_time_over()
  return (#kinds >= SMALLEST_BATCH or bytes >= SMALLEST_BYTES)
    and run_time() + bytes * BYTE_SECONDS > MOST_SECONDS
end

-- Only this number of characters at the end of `running` is searched for a time. The pattern '%S+$'
-- takes quadratic time, so a field of 30 KB from another program would block Redis for seconds.
local LONGEST_TIME = 64
-- Maximum number of bytes of an identity. A longer identity counts as empty.
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

-- Returns an identity for an entry that has no identity. The identity is computed from the
-- definition and the meta, so a later claim computes the same identity if Redis loses its last
-- writes.
local function new_identity(definition, meta)
  local text = redis.sha1hex and redis.sha1hex(definition .. '\n' .. (meta or ''))
    or string.format('%x', math.floor(now * 1000000) % 4294967296)
  return '"' .. string.sub(text, 1, 8) .. '"'
end

-- Adds the claims of the call whose reply was lost to this reply. All claims of that call have the
-- same score. Returns whether that call made any claims.
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

-- Value of `running` in a claim if a worker reported the end of the run before the run was
-- recorded.
local RUN_ENDED = '0'

-- If a claim has an unknown format and contains no end, this script leaves the claim unchanged for
-- this number of seconds.
local HELD = 60

-- Returns when a claim of unknown format without an end counts as ended, and the score that the
-- entry had when this function was first called for the claim. The field `unread` stores ["<time of
-- that first call> <score at that time>","<digest of the claim>"].
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
      -- Without this stored failure, an entry whose run kills each beat would never count as late,
      -- because each claim sets a later score.
      write_failure(key, found[5], found[10], UNRECORDED, '', '')
    end
    local may_be_sent = old_delivery == 'l' and tonumber(decided)
    if may_be_sent and same_rules(found[5], found[1], found[3], found[2]) then
      -- An earlier claim may have sent the run, so the caller must repeat the decision of the first
      -- claim.
      first, delivery, since = decided, old_delivery, decided
    end
  end
  local head = table.concat({turn_id, due, lease_end, first, delivery .. FORMAT}, ' ')
  local text = claim_text(head, found[1], found[3], found[2])
  if found[9] then
    redis.call('HSET', key, 'claim', text)
  else
    -- An earlier claim may have sent the run when the entry had no identity. With an empty
    -- identity, the run keeps the task id of that claim.
    found[9] = found[5] and '""' or new_identity(found[1], found[2])
    redis.call('HSET', key, 'claim', text, 'identity', found[9])
  end
  local running = found[6]
  if found[7] then
    -- The field `ended` may come from an earlier message. Remove the field, because this claim
    -- uses the task id of that message again.
    redis.call('HDEL', key, 'ended')
    running = since ~= '' and RUN_ENDED or running
  end
  add_claim('e', key, due, found[1], found[2], found[3], found[4], running, found[8], found[9],
    since)
  return lease_end
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
    local due = members[i + 1]
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
  -- redis.pcall ignores errors, because a standby must also work if the memory is full or the
  -- server is a read-only replica. The ZADD in record_presence() may be the first write of the
  -- script, so this ZADD must come after the claims; see PEXPIRE below.
  record_presence(redis.pcall, token .. ' lock')
end
if lock and standing == 2 then
  redis.pcall('HSET', stats, 'leader', now_text .. ' ' .. token)
  redis.pcall('HDEL', stats, 'problem')  -- the problem of the previous leader
end
add_counts(ARGV[13], ARGV[14], ARGV[15])
if last_turn ~= schedule and (#kinds > 0 or reply_lost or string.find(codes, '[15]')) then
  redis.pcall('SET', last_turn, turn_id .. ' ' .. lease_end .. ' ' .. codes, 'EX', REMEMBERED)
end

if lock and standing == 1 then
  -- PEXPIRE must be the last write. Redis checks the memory limit only before the first write of a
  -- script, so after an earlier PEXPIRE all other writes would bypass the limit.
  redis.call('PEXPIRE', lock, ttl)
end

-- If the rate limit allowed no claim, return the score of the first entry that is not due yet.
local least = late_limit ~= '' and #kinds == 0 and '(' .. now_text or 0
local first = redis.call('ZRANGEBYSCORE', schedule, least, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {
  standing, now_text, first[2] or '', redis.call('ZCARD', schedule),
  redis.call('SCARD', statics), aside('HLEN', quarantine), holder, pttl,
  codes, texts, table.concat(kinds), table.concat(sizes), table.concat(fields), lease_end}
