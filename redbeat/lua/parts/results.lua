-- results(stored) returns the parts of the field `results` of an entry: the four words of its first
-- line, and the lines of the runs.
--
-- The field `results` is a JSON string: a first line about all runs, then one line per run. The run
-- that ended last comes first in the lines of the runs.
--   Word 1 of the first line is when the last successful run ended, in UNIX seconds.
--   Word 2 of the first line is the number of failed runs since the last successful run, or since
--     the entry was resumed.
--   Word 3 of the first line is the nominal instant of the last failed run, in UNIX seconds.
--   Word 4 of the first line is since when a success is expected: when the field `results` was
--     first written or the entry was resumed.
--   The word '-' in the first line means that there is no value.
--
-- The line of a run contains the nominal instant of the run, when the run ended, its duration in
-- seconds ('-' if unknown), the number of retries, the state and the error, see entries/runs.py.
-- Each line of the field `results` ends with the two characters \n, the escape of a line feed in
-- JSON.
--
-- results_text(success, failures, failed, since, lines) returns the field `results` with the given
-- first line and the given lines of the runs.
--
-- setting(name, definition, policy) returns the number with this name from the policy, else from
-- the definition. If neither the policy nor the definition contains the number, setting() returns
-- nil.
--
-- Call watch(key, expected, definition, policy, before, now) after each write of an entry. For
-- watch(), `before` is the definition before the write, or nil. If the entry was resumed, watch()
-- sets the number of failed runs to 0. If the entry has `expect_within`, watch() adds its key to
-- the sorted set `expected`.

local function results(stored)
  local text = text_in(stored or '')
  local success, failures, failed, since = string.match(text, '^(%S+) (%d+) (%S+) (%S+)\\n')
  if not success then
    return '-', 0, '-', nil, ''
  end
  local _, stop = string.find(text, '\\n', 1, true)
  return success, tonumber(failures), failed, since, string.sub(text, stop + 1)
end

local function results_text(success, failures, failed, since, lines)
  return '"' .. table.concat({success, failures, failed, since}, ' ') .. '\\n' .. lines .. '"'
end

local function has(name, definition, policy)
  return string.find(policy or '', '"' .. name .. '"', 1, true)
    or string.find(definition, '"' .. name .. '"', 1, true)
end

local function setting(name, definition, policy)
  if not has(name, definition, policy) then
    return nil
  end
  local value = (decoded(policy or '') or {})[name]
  if value == nil then
    value = (decoded(definition) or {})[name]
  end
  return type(value) == 'number' and value or nil
end

local function is_disabled(definition)
  if not string.find(definition, '"enabled"%s*:%s*[^t1]') then
    return false
  end
  return is_off((decoded(definition) or {}).enabled)
end

local function watch(key, expected, definition, policy, before, now)
  local expects = setting('expect_within', definition, policy)
  local resumed = before and is_disabled(before) and not is_disabled(definition)
  if not expects and not resumed then
    return
  end
  local stored = redis.call('HGET', key, 'results')
  if (resumed and stored) or (expects and not stored) then
    local success, _, _, _, lines = results(stored)
    redis.call('HSET', key, 'results', results_text(success, 0, '-', now, lines))
  end
  if expects then
    -- The score in `expected` is a time before which the entry cannot be overdue, see
    -- entries/overdue.py.
    aside('ZADD', expected, 0, key)
  end
end
