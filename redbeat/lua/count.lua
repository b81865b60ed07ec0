-- Count the entries of each kind. This script writes nothing. Apart from reading at most
-- MOST_FAILING failing entries, the script takes the same time for any number of entries.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  The names of the static entries (set).
-- KEYS[3]  The quarantine (hash).
-- KEYS[4]  The beats (zset: token -> last seen, UNIX seconds), see claim.lua.
-- KEYS[5]  The stats (hash), see claim.lua. The field `problem` of the stats is the reason why a
--          beat sends no runs, and `last_tick` is the time of the last tick.
-- KEYS[6]  The entries whose run could not be sent (zset: entry key -> when the run was due), see
--          still_fails.lua.
-- KEYS[7]  The entries with `expect_within` (zset), see ended.lua.
-- KEYS[8]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[9]  The lock (string), omitted if locking is off.
-- ARGV[1]  The score of disabled entries.
-- ARGV[2]  The number of seconds for which a beat counts as active after it was last seen. A beat
--          whose "last seen" time is more than this number of seconds in the future is not active,
--          because another program must have written that time.
-- ARGV[3]  The maximum number of possibly overdue entries to return.
--
-- If the Redis user has no access to a key, the caller passes the schedule key in place of this
-- key; see aside.lua.
--
-- Returns {now, members, static, quarantined, disabled, parked (never due), due, first due, leader,
-- active beats, problem or '', failing, keys of possibly overdue entries, last tick (UNIX seconds)
-- or ''}. `first due` is when the first of the due entries was due, or ''. `leader` is the token of
-- the leader, '' without a leader, or 'a key that is not a lock'. `active beats` has the token of
-- each active beat, followed by when the beat was last seen. An entry whose run could not be sent
-- counts as due, although its score is the later time of the next attempt.

-- include: aside

-- include: sha1hex

-- include: marks

-- include: still_fails

local schedule, disabled = KEYS[1], ARGV[1]

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))

local holder = KEYS[9] and redis.pcall('GET', KEYS[9]) or ''
-- A beat can take over a lock that never expires only from a dead beat of RedBeat 3, so any other
-- key that never expires is reported as a key that is not a lock.
if type(holder) == 'table' or (KEYS[9] and string.sub(holder, 1, 9) ~= 'redbeat3:' and
    redis.call('PTTL', KEYS[9]) == -1) then
  holder = 'a key that is not a lock'
end
local since = string.format('%.6f', tonumber(now) - tonumber(ARGV[2]))
local latest = string.format('%.6f', tonumber(now) + tonumber(ARGV[2]))
-- Skip a score of 0, because a score of 0 does not show since when the entry is due.
local first = redis.call('ZRANGEBYSCORE', schedule, '(0', now, 'WITHSCORES', 'LIMIT', 0, 1)
local first_due, due = first[2] or '', redis.call('ZCOUNT', schedule, 0, now)

local MOST_FAILING, failing = 1000, 0

-- Failing entries after the first MOST_FAILING entries are counted but not read.
local listed = aside('ZCARD', KEYS[6])
local late = aside('ZRANGE', KEYS[6], 0, MOST_FAILING - 1, 'WITHSCORES')
for at = 1, late ~= 0 and #late or 0, 2 do
  local score = redis.call('ZSCORE', schedule, late[at])
  local found = score and tonumber(score) >= 0 and
    redis.pcall('HMGET', late[at], 'failing', 'claim', 'meta')
  if found and not found.err and still_fails(found[1], found[2], found[3]) then
    failing = failing + 1
    if first_due == '' or tonumber(late[at + 1]) < tonumber(first_due) then
      first_due = late[at + 1]
    end
    if tonumber(score) > tonumber(now) then
      due = due + 1
    end
  end
end
failing = failing + math.max(listed - MOST_FAILING, 0)

local stats = KEYS[5] ~= schedule and redis.pcall('HMGET', KEYS[5], 'problem', 'last_tick') or {}
local problem, last_tick = stats[1] or '', stats[2] or ''
local beats = aside('ZRANGEBYSCORE', KEYS[4], since, latest, 'WITHSCORES')
local expected = aside('ZRANGEBYSCORE', KEYS[7], '-inf', now, 'LIMIT', 0, ARGV[3])
return {
  now, redis.call('ZCARD', schedule), redis.call('SCARD', KEYS[2]), aside('HLEN', KEYS[3]),
  redis.call('ZCOUNT', schedule, disabled, disabled), redis.call('ZCOUNT', schedule, '-inf', '(0'),
  due, first_due, holder, beats ~= 0 and beats or {}, problem, failing,
  expected ~= 0 and expected or {}, last_tick}
