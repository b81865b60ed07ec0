-- Write an entry, or only its history, unless its history is not what the caller believes.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  entry (hash)
-- KEYS[3]  quarantine (hash)
-- ARGV[1]  definition, or '' to change only the history of an entry that exists
-- ARGV[2]  policy, or '' for none (ignored without a definition)
-- ARGV[3]  meta, or '' to leave the stored one
-- ARGV[4]  runtime, or '' to leave the stored one
-- ARGV[5]  the meta the caller has seen: its text, '' = none, '*' = any
-- ARGV[6]  score (UNIX seconds; below 0 = parked), or 'now' for the time of Redis
-- ARGV[7]  wake-up channel, told when a beat that waits must not wait on
-- ARGV[8]  seconds that a beat waits at most without being told
-- ARGV[9]  the instant from which a new entry counts, UNIX seconds, where it is the caller's clock
--          that made it up, else ''
--
-- Returns {1} when written, {0, meta, runtime} when the stored meta is another one, {-1} when there
-- is no entry and a definition or its meta is missing to make one, {-2} when the key is not a hash,
-- {-3, now} when the caller's clock is ahead of this one; nothing is written but for {1}. While a claim is held the score stays: the completion of that
-- claim sees the change and has the entry looked at again at once.

local schedule, entry, quarantine = KEYS[1], KEYS[2], KEYS[3]
local definition, policy, meta, runtime = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local seen, score, channel, longest_wait = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local made_up = tonumber(ARGV[9])

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
-- Clocks of hosts that are in order differ by less, seconds.
local TOLERANCE = 0.5

local stored = redis.pcall('HMGET', entry, 'definition', 'meta', 'runtime', 'claim')
if stored.err then
  return {-2}
end
-- These fail before the first write where a key of the schedule is of another type.
local member = redis.call('ZSCORE', schedule, entry)
redis.call('HEXISTS', quarantine, entry)

if not stored[1] then
  if definition == '' or meta == '' then
    return {-1}
  end
  if made_up and made_up > now + TOLERANCE then
    return {-3, string.format('%.6f', now)}
  end
  -- History without a definition belonged to an entry that is gone.
  redis.call('HDEL', entry, 'meta', 'runtime', 'claim', 'policy', 'running', 'ended')
  stored = {false, false, false, false}
end
if stored[1] and seen ~= '*' and (stored[2] or '') ~= seen and stored[2] ~= meta then
  return {0, stored[2] or '', stored[3] or ''}
end

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

local expires = stored[4] and tonumber(string.match(stored[4], '^%S+ %S+ (%S+)')) or 0
if expires > now and member then
  return {1}
end
if stored[4] then
  redis.call('HDEL', entry, 'claim')
end
if score == 'now' then
  score = string.format('%.6f', now)
end
redis.call('ZADD', schedule, score, entry)

local function is_first()
  return redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'LIMIT', 0, 1)[1] == entry
end

local due = tonumber(score)
if due >= 0 and (due <= now or (due < now + longest_wait and is_first())) then
  -- A user may be forbidden to publish; the beat then sees the entry at its next look.
  redis.pcall('PUBLISH', channel, 'due')
end
return {1}
