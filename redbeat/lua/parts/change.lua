-- apply(text) applies one change, see Change in storage/rows.py, and returns its answer.
--
-- All or nothing: what can be refused is checked before the first write. Of the writes, `push` and
-- `set` come before `unset`, because after an HDEL or DEL Redis refuses none for lack of memory.

-- How many members the changes added and removed, the keys that the look leaves out, and when the
-- first of the added entries is due.
local added, removed, left_out, first_due = 0, 0, {}, math.huge

local function write_index(commands)
  for _, command in ipairs(commands or {}) do
    if command[2] == 'statics' then
      redis.pcall(command[1], statics, unpack(command, 3))
    elseif command[1] == 'FORGET' then
      if side('HGET', command[2], command[3]) == command[4] then
        side('HDEL', command[2], command[3])
      end
    else
      side(unpack(command))
    end
  end
end

-- A score of 0 means now.
local function move(change, key, left)
  local score = change.add or change.score
  local at = tonumber(score)
  if at == 0 or (left and change.mark and (at > now or at < 0)) then
    score, at = now_text, now
  end
  if change.add then
    first_due = at >= 0 and math.min(first_due, at) or first_due
    added = added + redis.call('ZADD', schedule, score, key)
  else
    redis.call('ZADD', schedule, 'XX', score, key)
  end
end

-- `left` are the lines that stay in the inbox.
local function write(change, key, found, left)
  local texts, gone, fields = change.set or {}, change.unset or {}, {}
  if change.line or change.replaces then
    texts.history = newest_first(
      found[6], change.line, change.lines or 10, change.replaces) or false
  end
  if change.take then
    texts.inbox = bracketed(left) or false
  end
  if change.results then
    local results = redis.call('HGET', key, 'results')
    for _, pair in ipairs(change.results) do
      local others = without(inside(results), pair[1])
      results = newest_first(bracketed(others), pair[2], change.lines or 10)
    end
    texts.results = results or false
  end
  for field, text in pairs(texts) do
    if text then
      fields[#fields + 1], fields[#fields + 2] = field, text
    else
      gone[#gone + 1] = field
    end
  end
  if #fields > 0 then
    redis.call('HSET', key, unpack(fields))
  end
  if change.add or change.score then
    move(change, key, left)
  end
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone))
  end
  if change.take and not left then
    side('ZREM', 'inbox', key)
  end
end

local function remove(key)
  if is_ours(key) then
    redis.call('DEL', key)
  end
  removed = removed + redis.call('ZREM', schedule, key)
  side('ZREM', 'inbox', key)
end

local function writes_hash(change)
  return change.mark or change.set or change.unset or change.line or change.replaces or change.take
end

local function refusal(change, key, problem)
  if change.delete then
    local own = key == schedule or key == statics or key == lock
    return own and 'the key belongs to the schedule itself'
  end
  return writes_hash(change) and problem
end

local function differs(key, found, problem)
  left_out[key] = true
  return row(key, redis.call('ZSCORE', schedule, key), found, problem)
end

-- Returns the answer to a change that must not be tried, or nil.
local function objection(change, key, found, problem)
  local mark, set = change.mark, change.set or {}
  if mark and found[4] and string.find(found[4], '"' .. mark .. '"', 1, true) then
    return 'done'
  end
  if change.expect then
    local score = change.covers and redis.call('ZSCORE', schedule, key) or ''
    local digest = digest_of(found, change.covers, score)
      or change.expect ~= ABSENT and change.expect
    if digest ~= change.expect or digest == '-' then  -- no row has the digest '-'
      return (found[1] or problem) and differs(key, found, problem) or 'absent'
    end
  elseif not found[1] and writes_hash(change) and not set.definition and not problem then
    return 'absent'
  end
  local is_late = change.not_after and tonumber(change.not_after) < now
  if is_late or (change.not_before and tonumber(change.not_before) > now) then
    return 'stale'
  end
  local why = refusal(change, key, problem)
  return why and 'refused: ' .. why
end

local function apply_to(change, key)
  local found, problem = read(key)
  local left = after(found[5], change.take)
  local answer = objection(change, key, found, problem)
  if not answer and change.delete and change.expect and (left or (problem and is_ours(key))) then
    answer = differs(key, found, problem)
  end
  answer = answer or (change.push and push(change.push, key, found[1]))
  if answer then
    return answer
  end
  if change.delete then
    remove(key)
  else
    write(change, key, found, left)
  end
  write_index(change.index)
  return (change.delete and not (found[1] or problem or change.expect)) and 'absent' or 'done'
end

-- Returns 'done', or the keys of the twins that are not new.
local function add_twins(change)
  local first, count = unpack(change.twins)
  local index, left = change.index, {}
  change.index = nil
  for i = first_message + first, first_message + first + 2 * count - 2, 2 do
    local key = ARGV[i]
    change.set.definition = ARGV[i + 1]
    if apply_to(change, key) == 'done' then
      for _, command in ipairs(index) do
        command[#command + 1] = key
      end
    else
      left[#left + 1] = key
    end
  end
  write_index(index)
  return left[1] and cjson.encode(left) or 'done'
end

local function apply(text)
  local readable, change = pcall(cjson.decode, text)
  if not readable then
    return 'refused: ' .. change
  end
  if change.key == '' and not (change.score or change.delete) then
    write_index(change.index)
    return 'done'
  end
  local answer = apply_to(change, change.key)
  if answer == 'done' and change.twins then
    answer = add_twins(change)
  end
  left_out[change.key] = left_out[change.key] or string.sub(answer, 1, 7) == 'refused'
  return answer
end

-- Notes the loss before a save hides that the schedule is absent, and what was deleted.
local function note_between(before)
  local is_new = added > 0 and before == 0
  local noted = (removed > 0 or is_new) and tonumber(side('HGET', 'stats', 'members'))
  if noted and is_new and noted > 1 then
    side('HSET', 'stats', 'lost', now_text, 'members', 0)
  elseif noted and removed > 0 then
    side('HINCRBY', 'stats', 'members', -removed)
  end
end
