-- still_fails(field, claim, meta) returns whether the last attempt to send the run of an entry
-- failed. The field `failing` alone does not show that the attempt failed, because RedBeat 2 writes
-- the meta when it sends the run but does not remove the field.
--
-- failure_after(field, now, problem) returns the field after one more failed attempt, and the
-- number of attempts.
--
-- `field` is the field `failing` of the entry, as JSON:
-- ["<attempts> <first> <last>","<first error>","<last error>"]. `first` and `last` are the times of
-- the first and the last failed attempt, UNIX seconds. The errors are escaped as in JSON (a
-- backslash as \u005c), so that `","` appears only between the errors. A sorted set is the
-- index of the entries with this field: the member is the entry key, and the score is the time when
-- its run was due. The index may contain entries that no longer fail.

-- Maximum number of bytes of the field. Another program may have written a longer field.
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
