-- Record the end of a run, for an entry whose runs must not overlap.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  entry (hash)
-- ARGV[1]  task id of the run, as in a JSON text
-- ARGV[2]  wake-up channel
--
-- Returns 1 if the entry waits for the end of this run, else 0. Then the entry waits for another run,
-- or this run is not recorded yet: the field `ended` keeps the task id for the record.
--
-- The field `running` of an entry: the JSON text "<task id> <expires>"; `ended`: the task id of a run
-- that ended before it was recorded, as a JSON text.

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
-- A put-back occurrence waits for the end of this run or for a retry; both may happen now.
local score = put_back and redis.call('ZSCORE', schedule, entry)
local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))
if score and tonumber(score) > tonumber(now) then
  redis.call('ZADD', schedule, 'XX', now, entry)
  -- A user may lack the right to publish; the beat then sees the entry in its next turn.
  redis.pcall('PUBLISH', channel, 'due')
end
return 1
