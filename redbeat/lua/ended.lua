-- Note that a run has ended, for an entry whose runs must not overlap.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  entry (hash)
-- ARGV[1]  task id of the run, as in a JSON text
-- ARGV[2]  wake-up channel
--
-- Returns 1 when it was the run that the entry waits for, else 0: the run is not recorded yet, and
-- its record will find that it has ended, or it is another one.
--
-- The field `running` of an entry: the JSON text "<task id> <expires>"; `ended`: the task id of a run
-- that ended before it was recorded, a JSON text too.

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
-- An occurrence that was put back waits for this end, or for another try: either may be now.
local score = put_back and redis.call('ZSCORE', schedule, entry)
local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))
if score and tonumber(score) > tonumber(now) then
  redis.call('ZADD', schedule, 'XX', now, entry)
  -- A user may lack the right to publish; the beat then sees the entry in its next turn.
  redis.pcall('PUBLISH', channel, 'due')
end
return 1
