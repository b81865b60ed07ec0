-- Count the entries of each kind. This script only reads, and its cost does not depend on the
-- number of entries.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  statics (set of names)
-- KEYS[3]  quarantine (hash); this key and the next two are the schedule key if the user may not
--          access them, see aside.lua
-- KEYS[4]  beats (zset: token -> last seen, UNIX seconds), see claim.lua
-- KEYS[5]  stats (hash), see claim.lua; the field `problem` is the reason why a beat sends no runs
-- KEYS[6]  lock (string), omitted if locking is off
-- ARGV[1]  score of disabled entries
-- ARGV[2]  a beat is active if it was last seen within this many seconds
--
-- Returns {now, members, static, quarantined, disabled, parked (never due), due, score of the first
-- due entry or '', token of the leader or '', the active beats and when each was last seen, problem
-- or ''}

-- include: aside

local schedule, disabled = KEYS[1], ARGV[1]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

local holder = KEYS[6] and redis.pcall('GET', KEYS[6]) or ''
if type(holder) == 'table' then
  holder = 'a key that is not a lock'
end
local since = string.format('%.6f', tonumber(now) - tonumber(ARGV[2]))
-- Skip a score of 0: it means "due now", without the time since when the entry is due.
local first = redis.call('ZRANGEBYSCORE', schedule, '(0', now, 'WITHSCORES', 'LIMIT', 0, 1)
local problem = KEYS[5] ~= schedule and redis.pcall('HGET', KEYS[5], 'problem')
local beats = aside('ZRANGEBYSCORE', KEYS[4], since, '+inf', 'WITHSCORES')
return {
  now, redis.call('ZCARD', schedule), redis.call('SCARD', KEYS[2]), aside('HLEN', KEYS[3]),
  redis.call('ZCOUNT', schedule, disabled, disabled), redis.call('ZCOUNT', schedule, '-inf', '(0'),
  redis.call('ZCOUNT', schedule, 0, now), first[2] or '', holder,
  beats ~= 0 and beats or {}, type(problem) == 'string' and problem or ''}
