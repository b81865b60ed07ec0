-- Record that a run ended, for an entry whose runs must not overlap.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  entry (hash)
-- ARGV[1]  task id of the run, escaped as in JSON but without quotes
-- ARGV[2]  wake-up channel
--
-- Returns 1 if the entry has this run recorded as active, else 0. In the case of 0, another run is
-- active, or no run is, or this run is not recorded yet. A run that is not recorded yet is stored
-- in the field `ended`.
--
-- The field `running` of an entry is the JSON string "<task id> <expires>". The field `ended` is
-- the task id, as a JSON string, of a run that ended before it was recorded.

-- include: text_in

local schedule, entry, id, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local found = redis.pcall('HMGET', entry, 'definition', 'running', 'claim')
if found.err or not found[1] then
  return 0
end
local claim = found[3] or ''
local put_back = string.sub(claim, 1, 4) == '["- '
if not found[2] or string.match(text_in(found[2]), '^(.*) %S+$') ~= id then
  if claim ~= '' and not put_back then
    redis.call('HSET', entry, 'ended', '"' .. id .. '"')
  end
  return 0
end
redis.call('HDEL', entry, 'running')
-- An occurrence that was put back waits for the end of this run, or for a retry. Make it due now.
local score = put_back and redis.call('ZSCORE', schedule, entry)
local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))
if score and tonumber(score) > tonumber(now) then
  redis.call('ZADD', schedule, 'XX', now, entry)
  -- If the Redis user may not publish, a beat finds the entry at its next tick.
  redis.pcall('PUBLISH', channel, 'due')
end
return 1
