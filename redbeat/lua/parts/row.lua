-- is_ours(key) returns whether a key begins with the prefix.
-- read(key) returns the texts of an entry - definition, meta, policy, state, inbox, history - and
-- why they cannot be read, or nil.
-- row(key, score, found, problem) returns a row as JSON.
-- digest_of(found, covers, score) returns the SHA-1 of the texts of an entry, see digest_of() in
-- storage/rows.py. `covers` adds the score ('s') and the version of the calendars ('c').
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

local function row(key, score, found, problem)
  return cjson.encode({
    key = key, score = score or '', definition = found[1] or nil, meta = found[2] or nil,
    policy = found[3] or nil, state = found[4] or nil, inbox = found[5] or nil, problem = problem})
end

-- A fake Redis server in tests may lack redis.sha1hex; the store then sends the texts themselves.
local sha1hex = redis.sha1hex or function(text)
  return text
end

local function prefixed(text)
  return text and #text .. ':' .. text or '-'
end

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
  return sha1hex(text)
end
