-- Record the end of a run, and its result.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The entry (hash).
-- KEYS[3]  The entries with `expect_within` (zset: entry key -> a time before which the entry
--          cannot be overdue, UNIX seconds).
-- KEYS[4]  The stats (hash). The field `reports_since` of the stats is when a worker first reported
--          a run.
-- ARGV[1]  The task id of the run, escaped as in JSON but without quotes.
-- ARGV[2]  The wake-up channel.
-- ARGV[3]  The state of the run, see entries/runs.py; '' to remove only the field `running`.
-- ARGV[4]  The nominal instant of the run in UNIX seconds, or '-'.
-- ARGV[5]  The number of seconds since the run ended.
-- ARGV[6]  The last words of the line that is stored for the run: seconds, retries, state and
--          error, escaped as in JSON but without quotes; see results.lua.
-- ARGV[7]  The maximum number of lines per entry; 0 for no lines.
--
-- If the Redis user has no access to a key, the caller passes the schedule key in place of this
-- key; see aside.lua.
--
-- Returns {active, failures}. `active` is 1 if the ended run was recorded as the active run of the
-- entry. `active` is 0 if another run is active, if no run is active, or if the ended run is not
-- recorded yet. `failures` is the number of failed runs in a row if the entry must be paused now
-- because of its `pause_after_failures`, else 0. A repeated report of the same run changes only the
-- stored time of the end.
--
-- The field `running` of an entry is the JSON string "<task id> <when the run counts as ended>".
-- The field `ended` of an entry is the task id, as a JSON string, of a run that ended before it was
-- recorded.

-- include: aside

-- include: decoded

-- include: text_in

-- include: results

local schedule, entry, expected, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, channel, state, run = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lines_kept = tonumber(ARGV[7])

local found = redis.pcall('HMGET', entry, 'definition', 'running', 'claim', 'policy', 'results')
if found.err or not found[1] then
  return {0, 0}
end
local definition, claim, policy = found[1], found[3] or '', found[4]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local now_text = string.format('%.6f', now)

-- Removes the field `running` if the field contains the ended run. Returns 1 if the field `running`
-- was removed, else 0.
local function remove_mark()
  local put_back = string.sub(claim, 1, 4) == '["- '
  if not found[2] or string.match(text_in(found[2]), '^(.*) %S+$') ~= id then
    -- If a run ends before it is recorded, its end must be stored only if the entry has `overlap`.
    if claim ~= '' and not put_back and has('overlap', definition, policy) then
      redis.call('HSET', entry, 'ended', '"' .. id .. '"')
    end
    return 0
  end
  redis.call('HDEL', entry, 'running')
  -- If a claim was released, its occurrence waits for a retry or for the end of an earlier run, so
  -- make the occurrence due now.
  local score = put_back and redis.call('ZSCORE', schedule, entry)
  if score and tonumber(score) > now then
    redis.call('ZADD', schedule, 'XX', now_text, entry)
    -- An error of PUBLISH is ignored, because the Redis user may have no right to publish. A beat
    -- that receives no message finds the due entry at its next tick.
    redis.pcall('PUBLISH', channel, 'due')
  end
  return 1
end

-- Returns `line`, the line of the ended run, followed by the lines of other runs, at most
-- `lines_kept` lines in total.
local function with_line(line, stored)
  local kept, count = line .. '\\n', 1
  for other in string.gmatch(stored, '(.-)\\n') do
    if count < lines_kept and string.match(other, '^%S+') ~= run then
      kept, count = kept .. other .. '\\n', count + 1
    end
  end
  return lines_kept > 0 and kept or ''
end

-- Returns whether the result of the ended run is already among the stored lines. If the reply to a
-- report was lost, the worker repeats the report, possibly after another worker has reported
-- another run.
local function is_repeated(stored)
  for instant, rest in string.gmatch(stored, '(%S+) %S+ (.-)\\n') do
    if instant == run and run ~= '-' and rest == ARGV[6] then
      return true
    end
  end
  return false
end

-- Records the result of the ended run. Returns the number of failed runs in a row if the entry must
-- be paused now, else 0.
local function record_result()
  local ended = now - tonumber(ARGV[5])
  local ended_text = string.format('%.6f', ended)
  local success, failures, failed, since, lines = results(found[5])
  if state == 'succeeded' then
    success, failures, failed = ended_text, 0, '-'
    local within = setting('expect_within', definition, policy)
    if within then
      aside('ZADD', expected, string.format('%.6f', ended + within), entry)
    end
  elseif state == 'failed' and (failed ~= run or run == '-') and not is_repeated(lines) then
    failures, failed = failures + 1, run
  end
  lines = with_line(table.concat({run, ended_text, ARGV[6]}, ' '), lines)
  local text = results_text(success, failures, failed, since or now_text, lines)
  redis.call('HSET', entry, 'results', text)
  if stats ~= schedule and redis.pcall('HEXISTS', stats, 'reports_since') == 0 then
    redis.pcall('HSET', stats, 'reports_since', now_text)
  end
  local limit = state == 'failed' and setting('pause_after_failures', definition, policy)
  if limit and failures >= limit and not is_disabled(definition) then
    return failures
  end
  return 0
end

local active = state ~= 'retried' and remove_mark() or 0
if state == '' then
  return {active, 0}
end
return {active, record_result()}
