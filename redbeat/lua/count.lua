-- Count the entries of each kind. Takes about the same time for any number of entries.
--
-- KEYS     the schedule, the static entries, a key that never exists (see turn.lua), and the lock
--          unless locking is off.
-- ARGV     the score of disabled entries; for how many seconds a beat counts as active after it was
--          last seen; how many failing entries to return; from how many failed runs in a row an entry
--          counts as failed, and how many such entries to return.
--
-- Returns {head, rows}, both JSON: an object, an array. `first_due` is since when the first due entry is
-- due, `first_key` its key. `beats` has each active beat, followed by when it was last seen.
-- `expected` are the keys of entries that may be overdue, `failing` counts those whose run could
-- perhaps not be sent, and a row of these has nothing but score, meta and state.
-- `failed` counts the entries whose last runs failed, `most_failed` are some of them, each followed
-- by how many failed in a row.

-- include: start

-- include: side

-- include: row

local holder = lock and redis.pcall('GET', lock) or ''
-- From a dead beat of ours a lock that never expires is taken over; any other is not a lock.
if type(holder) == 'table' or (lock and string.sub(holder, 1, 9) ~= 'redbeat3:' and
    redis.call('PTTL', lock) == -1) then
  holder = 'a key that is not a lock'
end

-- A score of 0 does not say since when the entry is due.
local first = redis.call('ZRANGEBYSCORE', schedule, '(0', now_text, 'WITHSCORES', 'LIMIT', 0, 1)
local stats = side('HMGET', 'stats', 'problem', 'last_tick', 'host_ahead', 'leader', 'last_report',
  'dispatched') or {}
-- What is seen in the future was written by another program.
local since, latest = now - ARGV[2], string.format('%.6f', now + ARGV[2])
local head = {
  now = now_text, members = redis.call('ZCARD', schedule), statics = redis.call('SCARD', statics),
  disabled = redis.call('ZCOUNT', schedule, ARGV[1], ARGV[1]),
  parked = redis.call('ZCOUNT', schedule, '-inf', '(0'),
  due = redis.call('ZCOUNT', schedule, 0, now_text), first_due = first[2] or '', holder = holder,
  first_key = first[1] or '',
  quarantined = side('HLEN', 'quarantine') or 0,
  beats = side(
    'ZRANGEBYSCORE', 'beats', string.format('%.6f', since), latest, 'WITHSCORES') or {},
  problem = stats[1] or '', last_tick = stats[2] or '', host_ahead = stats[3] or '',
  leader = stats[4] or '', last_report = stats[5] or '', dispatched = stats[6] or '',
  expected = side('ZRANGEBYSCORE', 'expected', '-inf', now_text) or {},
  failing = side('ZCARD', 'failing') or 0, failed = side('ZCOUNT', 'failed', ARGV[4], '+inf') or 0,
  most_failed = side(
    'ZRANGE', 'failed', '+inf', ARGV[4], 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[5], 'WITHSCORES') or {}}
local rows = {}
for _, key in ipairs(side('ZRANGE', 'failing', 0, ARGV[3] - 1) or {}) do
  local found = read(key)
  local texts = {false, found[2], false, found[4]}
  rows[#rows + 1] = row(key, redis.call('ZSCORE', schedule, key), texts)
end
head.side_error = side_error
return {cjson.encode(head), together(rows)}
