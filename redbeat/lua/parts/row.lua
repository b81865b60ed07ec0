-- is_ours(key) returns whether a key begins with the prefix.
-- read(key) returns the texts of an entry - definition, meta, policy, state, inbox, history - and
-- why they cannot be read, or nil.
-- row(key, score, found, problem, more) returns a row as JSON; `more` are its other fields.
-- together(rows) returns rows as one JSON array: a client parses one text faster than many.
-- digest_of(found, covers, score) returns the SHA-1 of the texts of an entry, see digest_of() in
-- storage/rows.py. `covers` adds the score ('s') and the version of the calendars ('c'). It is nil on
-- a fake server, which lacks SHA-1: there, any text counts as the expected one, unless none is.
--
-- A key without the prefix is never read: it may lie in another slot of a cluster, or be forbidden
-- to the user of Redis, and the script would end.

local function is_ours(key)
  return string.sub(key, 1, #prefix) == prefix
end

local function read(key)
  if not is_ours(key) then
    return {}, 'the key does not begin with the prefix'
  end
  local found = redis.pcall(
    'HMGET', key, 'definition', 'meta', 'policy', 'beat_state', 'inbox', 'history')
  if found.err then
    local problem = tostring(found.err)  -- no text on a fake server
    if not string.find(problem, 'WRONGTYPE', 1, true) then
      redis.call('HMGET', key, 'definition')  -- ends the script: it would fail for every key
    end
    return {}, problem
  end
  return found
end

local function row(key, score, found, problem, more)
  local fields = more or {}
  fields.key, fields.score, fields.problem = key, score or '', problem
  fields.definition, fields.meta = found[1] or nil, found[2] or nil
  fields.policy, fields.state, fields.inbox = found[3] or nil, found[4] or nil, found[5] or nil
  return cjson.encode(fields)
end

local function together(rows)
  return '[' .. table.concat(rows, ',') .. ']'
end

local function prefixed(text)
  return text and #text .. ':' .. text or '-'
end

-- The digest of an entry without texts.
local ABSENT = 'af8207aece6ab93d4889751950d782c3fac325e3'

local function digest_of(found, covers, score)
  local text = prefixed(found[1]) .. prefixed(found[2]) .. prefixed(found[3]) .. prefixed(found[4])
  if covers then
    if string.find(covers, 's', 1, true) then
      text = text .. prefixed(score)
    end
    if string.find(covers, 'c', 1, true) then
      text = text .. prefixed(calendars_version())
    end
  end
  if text == string.rep('-', 4) then
    return ABSENT
  end
  return redis.sha1hex and redis.sha1hex(text)
end
