-- still_fails(field, claim, meta) returns whether the last attempt to send the run of an entry
-- failed. The field `failing` alone does not show that the last attempt failed, because RedBeat 2
-- writes the meta when it sends the run, but does not remove the field.
--
-- failure_after(field, now, problem) returns the field `failing` after one more failed attempt, and
-- the number of attempts.
--
-- The field `failing` of an entry is JSON of the form ["<attempts> <first> <last>","<first
-- error>","<last error>"]. In the field `failing`, `first` and `last` are the times of the first
-- and the last failed attempt, in UNIX seconds. The errors in the field `failing` are escaped as in
-- JSON (a backslash as \u005c), so that the characters `","` appear only between two strings. The
-- index of the entries with a field `failing` is a sorted set: entry key -> when the run was due.
-- The index of failing entries may contain entries that no longer fail.

-- The maximum number of bytes of a valid field `failing`; another program may have written a longer
-- field.
local LONGEST_FAILURE = 16384

-- Returns the first string of a field `failing` and the first error, or nil if the field is not
-- valid.
local function failure_parts(field)
  if not field or #field > LONGEST_FAILURE or string.sub(field, 1, 2) ~= '["' then
    return nil
  end
  local first = string.find(field, '","', 3, true)
  local last = first and string.find(field, '","', first + 3, true)
  if not last or string.sub(field, -2) ~= '"]' then
    return nil
  end
  return string.sub(field, 3, first - 1), string.sub(field, first + 3, last - 1)
end

local function failure_after(field, now, problem)
  local head, first = failure_parts(field)
  local attempts, since = string.match(head or '', '^(%d+) (%S+) ')
  attempts = (tonumber(attempts) or 0) + 1
  return '["' .. attempts .. ' ' .. (since or now) .. ' ' .. now .. '","' .. (first or problem) ..
    '","' .. problem .. '"]', attempts
end

local function still_fails(field, claim, meta)
  if not field or not claim then
    return false
  end
  local _, same_meta = made_of(claim, '', '', meta)
  return same_meta
end
