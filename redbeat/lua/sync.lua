-- Write the entries of `beat_schedule` that differ from the stored entries.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The names of the static entries (set).
-- KEYS[3]  The quarantine (hash).
-- KEYS[4]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[5]  The entries with `expect_within` (zset), see ended.lua.
-- KEYS[6]  The stats (hash), see look_for_loss.lua.
-- KEYS[7]  The lock (string), omitted if locking is off.
-- ARGV[1]  The lock token of the caller.
-- ARGV[2]  The time to live of the lock in milliseconds, or '' if the caller does not need the
--          lock. The script extends the lock, because the sync of many entries takes several calls.
--          If the caller does not need the lock, this script only adds missing entries while
--          another beat holds the lock.
-- ARGV[3]  The sizes in bytes of the fields in the next argument, as big-endian integers of four
--          bytes.
-- ARGV[4]  The fields of all entries, joined without separators. Each entry has six fields: name,
--          entry key, definition, policy or '', meta for a new entry ('' = the meta of the previous
--          entry), and score for a new entry (UNIX seconds; below 0 = never due).
-- ARGV[5]  The time limit in microseconds, after which the remaining entries are not written and
--          get no code.
--
-- If the Redis user has no access to a key, the caller passes the schedule key in place of this
-- key; see aside.lua.
--
-- An entry without an identity (see claim.lua) gets an empty identity. If a beat adds a static
-- entry again after Redis lost its data, the entry has the same empty identity as before.
--
-- An entry that has reached its `max_runs` restarts like a new entry if its schedule, time zone,
-- start time or end time changed.
--
-- An entry that an operator paused stays paused until its definition in `beat_schedule` changes.
--
-- Returns {-1} and writes nothing if the caller needs the lock but does not hold it. Returns {2,
-- codes} if another beat holds the lock and only missing entries were added, else {1, codes}.
-- `codes` has a digit per entry: 0 unchanged, 1 added, 2 changed, 3 added to the sorted set again,
-- 4 skipped because the key is not a hash. A changed entry keeps its last run and its run count,
-- unless the entry restarts.

-- include: aside

-- include: read_claim

local schedule, statics, quarantine, lock = KEYS[1], KEYS[2], KEYS[3], KEYS[7]
local expected, stats = KEYS[5], KEYS[6]
local must_lead = ARGV[2] ~= ''
local holder = lock and redis.pcall('GET', lock)
local leads = not lock or holder == ARGV[1]
if must_lead and not leads then
  return {-1}
end
local only_missing = not leads and holder ~= false

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local due_now = string.format('%.6f', now)

local function claimed(claim)
  local _, _, expires = read_claim(claim, now)
  return expires > now
end

-- include: sha1hex

-- include: row_reader

-- include: decoded

-- include: marks

-- include: same_rules

-- include: text_in

-- include: results

-- include: run_time

-- include: look_for_loss

local function write(key, definition, policy, before)
  redis.call('HSET', key, 'definition', definition)
  if policy ~= '' then
    redis.call('HSET', key, 'policy', policy)
  else
    redis.call('HDEL', key, 'policy')
  end
  aside('HDEL', quarantine, key)
  watch(key, expected, definition, policy, before, due_now)
end

-- Returns whether an operator paused the entry while `beat_schedule` contained `definition` and
-- `policy`.
local function paused_from(stored, definition, policy)
  if not stored or not string.find(stored, '"pause"', 1, true) then
    return false
  end
  local extension = decoded(stored)
  local pause = extension and extension.pause
  local whole = policy ~= '' and (definition .. '\n' .. policy) or definition
  return type(pause) == 'table' and pause.of == sha1hex(whole)
end

-- Returns whether an entry that has reached its `max_runs` restarts. The Python function
-- history_after_save follows the same rule as this Lua function, but also recognizes equal
-- schedules whose JSON differs.
local function begins_again(found, definition, policy)
  if not string.find(policy, '"max_runs"', 1, true) then
    return false
  end
  local count = tonumber((decoded(found[5]) or {}).total_run_count) or 0
  local old, new = decoded(found[2]) or {}, decoded(policy) or {}
  local limit = tonumber(new.max_runs) or count + 1
  if count < math.min(limit, tonumber(old.max_runs) or limit) then
    return false
  end
  for _, name in ipairs({'timezone', 'start_time', 'end_time', 'dtstart_zone', 'until_zone'}) do
    if not equal(old[name], new[name], false) then
      return true
    end
  end
  local was, is = decoded(found[1]) or {}, decoded(definition) or {}
  return not equal(was.schedule, is.schedule, false)
end

-- Returns the runtime to store if `timezone` or `start_time` changed, and the schedule did not; else
-- nil. The runtime has the old values, see the Python class Change.
local function noted_change(found, definition, policy)
  local was, is = decoded(found[1]) or {}, decoded(definition) or {}
  local old, new = decoded_policy(found[2]) or {}, decoded_policy(policy) or {}
  local same = equal(old.timezone, new.timezone, false)
    and equal(old.start_time, new.start_time, false)
  if same or not equal(was.schedule, is.schedule, false) then
    return nil
  end
  local runtime = found[6] or ''
  if string.find(runtime, '"changed_at"', 1, true) then
    return (string.gsub(runtime, '("changed_at"%s*:%s*)[%d.]+', '%1' .. due_now))
  end
  local times = string.match(runtime, '^{(.+)}$')
  return string.format('{%s"old_zone":%s,"old_start":%s,"changed_at":%s}',
    times and times .. ',' or '', cjson.encode(old.timezone or ''),
    cjson.encode(old.start_time or cjson.null), due_now)
end

local function sync(key, definition, policy, meta, score)
  local found = redis.pcall(
    'HMGET', key, 'definition', 'policy', 'claim', 'identity', 'meta', 'runtime')
  if found.err then
    return 4
  end
  if not found[1] then
    -- A hash without a definition is left over from a deleted entry.
    redis.call('HDEL', key, 'meta', 'runtime', 'claim', 'policy', 'running', 'ended', 'history',
      'trigger', 'failing', 'results', 'unread')
    write(key, definition, policy)
    redis.call('HSET', key, 'meta', meta, 'identity', '""')
    redis.call('ZADD', schedule, score, key)
    return 1
  end
  if only_missing then
    return 0
  end
  if not found[4] then
    redis.call('HSET', key, 'identity', '""')
  end
  local member = redis.call('ZSCORE', schedule, key)
  local differs = found[1] ~= definition or (found[2] or '') ~= policy
  if differs and not paused_from(found[2], definition, policy) then
    if begins_again(found, definition, policy) then
      local rule = decoded(definition).schedule
      if type(rule) == 'table' and rule.__type__ == 'clocked' then
        -- Set only the run count to 0 and keep the last run, because a clocked time before the last
        -- run must not run again.
        meta = string.gsub(found[5], '("total_run_count"%s*:%s*)%d+', '%10')
      end
      redis.call('HSET', key, 'meta', meta)
    end
    local runtime = noted_change(found, definition, policy)
    if runtime then
      redis.call('HSET', key, 'runtime', runtime)
    end
    if found[3] then
      note_edit(key, found[3], found[1], found[2], found[5], definition, policy)
    end
    write(key, definition, policy, found[1])
    if not (member and claimed(found[3])) then
      redis.call('ZADD', schedule, due_now, key)
    end
    return 2
  end
  if not member then
    redis.call('ZADD', schedule, due_now, key)
    return 3
  end
  return 0
end

if not must_lead then
  keep_loss(redis.call('ZCARD', schedule))  -- a leader has looked in its last turn
end
local read_row, row, start = row_reader(6), nil, 1
local codes, names, meta = {}, {}, ''
for at = 1, #ARGV[3], 24 do
  row, start = read_row(ARGV[3], at, ARGV[4], start)
  if row[5] ~= '' then
    meta = row[5]
  end
  local code = sync(row[2], row[3], row[4], meta, row[6])
  codes[#codes + 1] = code
  if code ~= 4 then
    names[#names + 1] = row[1]
  end
  if #codes % CHECKED == 0 and out_of_time(ARGV[5]) then
    break
  end
end
if #names > 0 then
  redis.call('SADD', statics, unpack(names))
end
if lock and must_lead then
  redis.call('PEXPIRE', lock, ARGV[2])
end
return {only_missing and 2 or 1, table.concat(codes)}
