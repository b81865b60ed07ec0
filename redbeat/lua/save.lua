-- Write entries, or only their histories, unless one is not what the caller believes.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  quarantine (hash)
-- KEYS[3]  entry (hash): the first one that is written
-- ARGV[1]  wake-up channel, told when a beat that waits must not wait on
-- ARGV[2]  seconds that a beat waits at most without being told
-- ARGV[3]  entries, packed: the sizes of their fields in bytes, separated by spaces
-- ARGV[4]  the fields, one after the other; per entry ten:
--            entry key
--            definition, or '' to change only the history of an entry that exists
--            policy, or '' for none (ignored without a definition)
--            meta, or '' to leave the stored one
--            runtime, or '' to leave the stored one
--            the meta the caller has seen: its text, '' = none, '*' = any
--            score (UNIX seconds; below 0 = parked), or 'now' for the time of Redis
--            the instant from which a new entry counts, UNIX seconds, where it is the caller's
--            clock that made it up, else ''
--            '' or, to be refused where another text is stored, '=', the definition, a line feed
--            and the policy that the caller has seen, or '-' for no entry
--            the lines of the history, or '' to leave the stored ones
--
-- Returns per entry {1} when written, {0, meta, runtime} when the stored meta is another one, {-1}
-- when there is no entry and a definition or its meta is missing to make one, {-2} when the key is
-- not a hash, {-3, now} when the caller's clock is ahead of this one, {-4} when definition or policy
-- are not those it has seen; that entry is not written but for {1}, and none is written, {-5}, where
-- a key is not a hash. While a claim is held the score stays: the completion of that claim sees the
-- change and has the entry looked at again at once.

local schedule, quarantine = KEYS[1], KEYS[2]
local channel, longest_wait = ARGV[1], tonumber(ARGV[2])

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
-- Clocks of hosts that are in order differ by less, seconds.
local TOLERANCE = 0.5

local fields, start = {}, 1
for size in string.gmatch(ARGV[3], '%d+') do
  fields[#fields + 1] = string.sub(ARGV[4], start, start + size - 1)
  start = start + size
end

-- These fail before the first write where a key of the schedule is of another type.
redis.call('ZCARD', schedule)
redis.call('HLEN', quarantine)

local function load(entry)
  return redis.pcall('HMGET', entry, 'definition', 'meta', 'runtime', 'claim', 'policy', 'trigger')
end

local function refused()
  local replies, bad = {}, false
  for at = 1, #fields, 10 do
    local is_bad = load(fields[at]).err ~= nil
    bad = bad or is_bad
    replies[#replies + 1] = {is_bad and -2 or -5}
  end
  return bad and replies
end

-- The earliest score that was written, and whose it is.
local earliest, whose

local function write_score(entry, score, triggered)
  if score == 'now' or triggered then
    score = string.format('%.6f', now)
  end
  redis.call('ZADD', schedule, score, entry)
  local due = tonumber(score)
  if due >= 0 and (not earliest or due < earliest) then
    earliest, whose = due, entry
  end
end

local function write_texts(entry, definition, policy, meta, runtime)
  if definition ~= '' then
    redis.call('HSET', entry, 'definition', definition)
    if policy ~= '' then
      redis.call('HSET', entry, 'policy', policy)
    else
      redis.call('HDEL', entry, 'policy')
    end
  end
  if meta ~= '' then
    redis.call('HSET', entry, 'meta', meta)
  end
  if runtime ~= '' then
    redis.call('HSET', entry, 'runtime', runtime)
  end
  redis.call('HDEL', quarantine, entry)
end

local function save(
  entry, definition, policy, meta, runtime, seen, score, made_up, believed, history)
  local stored = load(entry)
  local member = redis.call('ZSCORE', schedule, entry)
  if believed ~= '' then
    local texts = stored[1] and '=' .. stored[1] .. '\n' .. (stored[5] or '') or '-'
    if texts ~= believed then
      return {-4}
    end
  end
  if not stored[1] then
    if definition == '' or meta == '' then
      return {-1}
    end
    if (tonumber(made_up) or 0) > now + TOLERANCE then
      return {-3, string.format('%.6f', now)}
    end
    -- History without a definition belonged to an entry that is gone.
    redis.call('HDEL', entry, 'meta', 'runtime', 'claim', 'policy', 'running', 'ended', 'history',
      'trigger')
    stored = {false, false, false, false, false, false}
  end
  if stored[1] and seen ~= '*' and (stored[2] or '') ~= seen and stored[2] ~= meta then
    return {0, stored[2] or '', stored[3] or ''}
  end
  write_texts(entry, definition, policy, meta, runtime)
  if history ~= '' then
    redis.call('HSET', entry, 'history', history)
  end
  local expires = stored[4] and tonumber(string.match(stored[4], '^%S+ %S+ (%S+)')) or 0
  if expires > now and member then
    return {1}
  end
  if stored[4] then
    redis.call('HDEL', entry, 'claim')
  end
  write_score(entry, score, stored[6])
  return {1}
end

local function is_first(entry)
  return redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'LIMIT', 0, 1)[1] == entry
end

local replies = refused()
if not replies then
  replies = {}
  for at = 1, #fields, 10 do
    replies[#replies + 1] = save(unpack(fields, at, at + 9))
  end
  if earliest
    and (earliest <= now or (earliest < now + longest_wait and is_first(whose))) then
    -- A user may be forbidden to publish; the beat then sees the entry at its next look.
    redis.pcall('PUBLISH', channel, 'due')
  end
end
return replies
