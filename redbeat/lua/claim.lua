-- Keep the lock, record what was dispatched, claim what is due: one turn of a beat.
--
-- KEYS[1]  schedule (zset: entry key -> due, UNIX seconds; below 0 = parked)
-- KEYS[2]  statics (set of names)
-- KEYS[3]  quarantine (hash); the schedule stands for this one and the next two, see aside.lua
-- KEYS[4]  beats (zset: token -> last seen, UNIX seconds); ' lock' follows the token of one that has
--          a lock to wait for: only those without share the work
-- KEYS[5]  stats (hash: what was counted -> how often), see StatsFields
-- KEYS[6]  a key that never exists, see Store: a cluster then runs nothing while it moves the slot
-- KEYS[7]  lock (string), left out when locking is off
-- ARGV[1]  key prefix
-- ARGV[2]  claim id given to what is claimed now
-- ARGV[3]  limit: how many entries to claim at most
-- ARGV[4]  lease: seconds until the claims made now expire
-- ARGV[5]  token of the caller
-- ARGV[6]  lock time to live, milliseconds
-- ARGV[7]  token of a leader known to be dead, or ''
-- ARGV[8]  retry: seconds until a member without a definition is looked at again
-- ARGV[9]  completions, packed: the sizes of their fields in bytes, four bytes each, highest first
-- ARGV[10] the fields, one after the other; per completion ten: entry key, claim id, next score
--          (seconds; below 0 = park), meta or '' (leave), runtime or '' (leave), and the stored meta
--          that the new one replaces: '' the claimed one, else '=' and its text; and what becomes
--          of an entry that has finished: '' nothing, '-' it is deleted, else its new definition.
--          With meta '' the runtime 'again' puts the occurrence back: the next claim is told the
--          same due instant.
--          The eighth is the task id of a run that goes on now and the seconds it may take, or '';
--          or '-': the occurrence that is put back waits for the run that goes on.
--          Texts of the eighth and the tenth are as in a JSON text, a backslash in them is \u005c.
--          The ninth is the id of a triggered run that is not waited for any more, or ''; the tenth
--          is a line for the history, or ''.
-- ARGV[11] when the claims made now expire, by the caller's reckoning; '' when it does not know.
--          Something that is not about a lease ahead is replaced by exactly that.
-- ARGV[12] '1' when the reply to a call with this claim id got lost: what that call claimed is
--          handed out again, and nothing else if there is anything
-- ARGV[13] how many lines of history an entry has at most, the latest first; 0 for none
-- ARGV[14] id of what the caller counted, '' for nothing: what was added under it is not added again
-- ARGV[15] the counts, packed: the sizes of their fields in bytes, separated by spaces
-- ARGV[16] the fields, one after the other; per count two: field of the stats, how much to add
-- ARGV[17] key of the only entry to claim, due or not, or '' for what is due
--
-- Returns {standing, now, next score or '', members, statics, quarantined, holder, holder's
--          PTTL in ms, codes, metas, kinds, sizes, fields, expires}
--   standing    1 leader (or no lock), 2 just became leader (nothing is claimed), 0 standby
--   codes       a digit per completion: 1 recorded, 0 refused: the claim is not ours any more,
--               2 meta was changed by somebody else: nothing written, claim kept
--   metas       the stored meta for each code 2
--   kinds       a letter per claim: e entry, g its hash is gone, x its key is not a hash
--   sizes       the sizes of the fields of all claims in bytes, four bytes each, highest first
--   fields      per claim nine: key, due, definition (for x the error), meta, policy, runtime,
--               until when an earlier run counts as going on, or '', the triggered runs that
--               wait as in trigger.lua, or '', the identity of the entry
--   expires     when the claims end
--
-- The field `claim` of an entry is told in marks.lua. The field `identity` tells an entry from one of
-- the same name that was deleted: a text in quotes, given by whoever writes the entry; here where a
-- program did not that knows nothing of it. An empty one is the same for ever.

local schedule, statics, quarantine, beats, lock = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[7]
local stats = KEYS[5]
local prefix, claim_id, limit, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local token, ttl, dead, retry = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local told, reply_lost = tonumber(ARGV[11]), ARGV[12] == '1'
local lines = tonumber(ARGV[13])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local function seconds(number)
  return string.format('%.6f', number)
end

local now_text = seconds(now)

-- include: sha1hex

-- include: marks

-- include: aside

-- include: read_claim

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

-- Scores to write: pairs of score and member, sent together.
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

-- Notes that a run goes on, unless it has ended before this.
local function mark_running(key, running)
  local id, timeout = string.match(running, '^(.*) (%S+)$')
  if redis.call('HGET', key, 'ended') ~= '"' .. id .. '"' then
    redis.call('HSET', key, 'running', '"' .. id .. ' ' .. seconds(now + tonumber(timeout)) .. '"')
  end
  redis.call('HDEL', key, 'ended')
end

-- Whether runs wait by the field `trigger`, which anybody may have written.
local function waits(trigger)
  return trigger and string.find(text_in(trigger), '%S')
end

-- The runs that still wait when one does not any more.
local function without(waiting, id)
  local left = {}
  for run in string.gmatch(waiting, '%S+') do
    if run ~= id and string.sub(run, 1, #id + 1) ~= id .. ':' then
      left[#left + 1] = run
    end
  end
  return table.concat(left, ' ')
end

local function printable(character)
  return character == '\n' and '\\n' or ''
end

-- As many lines of a history as stay when there is a new one, with the quote at the end. Lines end
-- with the two characters of a line feed in JSON; no other backslash comes before an n.
local function newest(history)
  if text_in(history) == history then
    history = '"' .. string.gsub(history, '[%c"\\]', printable) .. '"'  -- no writer of ours
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
    line = '"' .. line .. '\\n' .. newest(history)
  else
    line = ''
  end
  if meta ~= '' and line ~= '' then
    redis.call('HSET', key, 'meta', meta, 'runtime', runtime, 'history', line)
  elseif meta ~= '' then
    redis.call('HSET', key, 'meta', meta, 'runtime', runtime)
  else
    if runtime ~= '' and runtime ~= 'again' then
      redis.call('HSET', key, 'runtime', runtime)
    end
    if line ~= '' then
      redis.call('HSET', key, 'history', line)
    end
  end
end

local function complete(key, id, score, meta, runtime, seen, finish, running, run, line)
  local found = redis.pcall(
    'HMGET', key, 'claim', 'definition', 'policy', 'meta', 'trigger', 'history')
  if found.err or not found[1] or not found[2] then
    return 0
  end
  local claim = found[1]
  if string.sub(claim, 1, #id + 3) ~= '["' .. id .. ' ' then
    return 0
  end
  local same, same_meta = made_of(claim, found[2], found[3], found[4])
  if not same then
    -- Somebody wrote to the entry: it is looked at again.
    if meta ~= '' and not same_meta and seen ~= '=' .. (found[4] or '') then
      return 2, found[4] or ''
    end
    score, finish = now_text, ''
  end
  if finish == '-' then
    redis.call('DEL', key)
    redis.call('ZREM', schedule, key)
    return 1
  end
  if finish ~= '' then
    redis.call('HSET', key, 'definition', finish)
  end
  if running == '-' then
    if redis.call('HEXISTS', key, 'running') == 0 then
      score = now_text  -- that run has ended since the claim
    end
  elseif running ~= '' then
    mark_running(key, running)
  end
  write_history(key, meta, runtime, line, found[6] or '')
  if run ~= '' and waits(found[5]) then
    local left = without(text_in(found[5]), run)
    if left ~= '' then
      redis.call('HSET', key, 'trigger', '"' .. left .. '"')
    else
      redis.call('HDEL', key, 'trigger')
    end
  end
  if meta == '' and runtime == 'again' then
    local _, due = read_claim(claim)
    redis.call('HSET', key, 'claim', '["- ' .. due .. ' 0"]')
  else
    if meta == '' then
      redis.call('HSET', key, 'claim', '')  -- refused when memory is full, as HDEL is not
    end
    redis.call('HDEL', key, 'claim')
    if waits(found[5]) then
      score = now_text  -- triggered since the claim
    end
  end
  score_later(score, key)
  return 1
end

-- Sizes as texts of four bytes each; a fake server may lack the library for it.
local NINE = '>' .. string.rep('I4', 9)

local function written(...)
  if struct then
    return struct.pack(NINE, ...)
  end
  local texts = {}
  for i, size in ipairs({...}) do
    texts[i] = string.char(
      math.floor(size / 16777216), math.floor(size / 65536) % 256, math.floor(size / 256) % 256,
      size % 256)
  end
  return table.concat(texts)
end

-- include: row_reader

local read_completion = row_reader(10)

local function complete_all(sizes, packed)
  local codes, metas, fields, start = {}, {}, nil, 1
  for at = 1, #sizes, 40 do
    fields, start = read_completion(sizes, at, packed, start)
    local code, meta = complete(unpack(fields, 1, 10))
    codes[#codes + 1] = code
    metas[#metas + 1] = meta
  end
  write_scores('XX')
  return table.concat(codes), metas
end

local function read(member)
  local found = redis.pcall(
    'HMGET', member, 'definition', 'meta', 'policy', 'runtime', 'claim', 'running', 'ended',
    'trigger', 'identity')
  if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then
    error(found.err)  -- not about this key: of all others the same would be said
  end
  return found, found.err
end

-- Members to remove, when memory was found for what replaces them.
local replaced = {}

-- A member may name an entry without the prefix; it is replaced by the entry's key. A key outside
-- the prefix is never read: it may be in another slot, or forbidden, and stop the whole script.
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

-- Several beats share what is due: so many may each claim, but a few in any case.
local SMALLEST_SHARE, SEEN_WITHIN, FORGET_AFTER = 25, 10, 60

local function note_presence(call, member)
  if type(call('ZADD', beats, now_text, member)) == 'number' then
    call('EXPIRE', beats, FORGET_AFTER)
    call('ZREMRANGEBYSCORE', beats, '-inf', seconds(now - FORGET_AFTER))
  end
end

local function share()
  if beats == schedule then
    return limit
  end
  note_presence(redis.call, token)
  local present = 0
  for _, beat in ipairs(redis.call('ZRANGEBYSCORE', beats, seconds(now - SEEN_WITHIN), '+inf')) do
    present = present + (string.sub(beat, -5) == ' lock' and 0 or 1)
  end
  if present < 2 then
    return limit
  end
  local due = redis.call('ZCOUNT', schedule, 0, now_text)
  return math.min(limit, math.max(math.ceil(due / present), SMALLEST_SHARE))
end

-- include: split

-- Adds what was counted. Nothing else of a turn fails when that is refused.
local function add_counts(id, sizes, packed)
  if id == '' or redis.pcall('HGET', stats, 'batch') == id then
    return
  end
  redis.pcall('HSET', stats, 'batch', id, 'last_tick', now_text)
  local counts = split(sizes, packed)
  for at = 1, #counts, 2 do
    redis.pcall('HINCRBY', stats, counts[at], counts[at + 1])
  end
end

local standing, holder, pttl = keep_lock()
if not lock and token ~= '' then
  limit = share()
end

local codes, metas = complete_all(ARGV[9], ARGV[10])

local kinds, sizes, fields = {}, {}, {}

local function hand_out(
  kind, key, due, definition, meta, policy, runtime, running, trigger, identity)
  definition, meta, policy, runtime = definition or '', meta or '', policy or '', runtime or ''
  running = running and string.match(text_in(running), '%S+$') or ''
  trigger = waits(trigger) and text_in(trigger) or ''
  identity = identity and text_in(identity) or ''
  kinds[#kinds + 1] = kind
  sizes[#sizes + 1] = written(
    #key, #due, #definition, #meta, #policy, #runtime, #running, #trigger, #identity)
  local at = #fields
  fields[at + 1], fields[at + 2], fields[at + 3], fields[at + 4] = key, due, definition, meta
  fields[at + 5], fields[at + 6], fields[at + 7], fields[at + 8] = policy, runtime, running, trigger
  fields[at + 9] = identity
end

local lease_end = seconds(now + lease)
if told and math.abs(now + lease - told) <= lease / 10 then
  lease_end = seconds(told)
end
local retry_at = seconds(now + retry)

-- The identity of an entry that has none, from its texts: the same one once more after Redis lost it.
local function new_identity(definition, meta)
  local text = redis.sha1hex and redis.sha1hex(definition .. '\n' .. (meta or ''))
    or string.format('%x', math.floor(now * 1000000) % 4294967296)
  return '"' .. string.sub(text, 1, 8) .. '"'
end

-- All claims of one call bear the same score. Returns whether there were any.
local function hand_out_again()
  if not told or told <= now then
    return false
  end
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', schedule, seconds(told), seconds(told))) do
    local found, err = read(key)
    if not err and found[1] and found[5] then
      local id, due = read_claim(found[5])
      if id == claim_id then
        hand_out('e', key, due, found[1], found[2], found[3], found[4], found[6], found[8],
          found[9])
      end
    end
  end
  if #kinds > 0 then
    lease_end = seconds(told)
  end
  return #kinds > 0
end

-- Returns the score to write: when the claim expires.
local function claim(key, found, due)
  if found[5] then
    local _, earlier, expires = read_claim(found[5], now)
    if tonumber(earlier) then
      due = earlier
    end
    if expires > now then
      return seconds(math.min(expires, now + lease))
    end
  end
  local text = claim_text(claim_id, due, lease_end, #kinds, found[1], found[3], found[2])
  if found[9] then
    redis.call('HSET', key, 'claim', text)
  else
    -- What was claimed without an identity may have been sent: its id stays the same.
    found[9] = found[5] and '""' or new_identity(found[1], found[2])
    redis.call('HSET', key, 'claim', text, 'identity', found[9])
  end
  if found[7] then
    redis.call('HDEL', key, 'ended')  -- of a message that this one may repeat under the same id
  end
  hand_out('e', key, due, found[1], found[2], found[3], found[4], found[6], found[8],
    found[9])
  return lease_end
end

local only = ARGV[17]

local function to_claim()
  if only ~= '' then
    return {only, redis.call('ZSCORE', schedule, only) or now_text}
  end
  return redis.call('ZRANGEBYSCORE', schedule, 0, now_text, 'WITHSCORES', 'LIMIT', 0, limit)
end

if standing == 1 and limit > 0 and not (reply_lost and hand_out_again()) then
  local members = to_claim()
  for i = 1, #members, 2 do
    local key, found, err = resolve(members[i])
    local due = members[i + 1]
    if tonumber(due) <= 0 then
      due = now_text
    end
    local again = retry_at
    if err then
      hand_out('x', key, due, tostring(err))
    elseif not found[1] then
      hand_out('g', key, due)
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
  -- Nothing depends on it: a standby goes on without where memory is full or it may only read. Not
  -- earlier, for the reason below.
  note_presence(redis.pcall, token .. ' lock')
end
if lock and standing == 2 then
  redis.pcall('HSET', stats, 'leader', now_text .. ' ' .. token)
end
add_counts(ARGV[14], ARGV[15], ARGV[16])

if lock and standing == 1 then
  -- Last, because Redis refuses for want of memory only what precedes a script's first write.
  redis.call('PEXPIRE', lock, ttl)
end

local first = redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {
  standing, now_text, first[2] or '', redis.call('ZCARD', schedule),
  redis.call('SCARD', statics), aside('HLEN', quarantine), holder, pttl,
  codes, metas, table.concat(kinds), table.concat(sizes), table.concat(fields), lease_end}
