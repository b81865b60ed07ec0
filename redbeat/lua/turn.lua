-- One turn: check the lock, apply the changes that came along, look at what is due, and renew the
-- lock, last. It may be repeated: changes that were applied are known by their marks.
--
-- KEYS     the schedule, the static entries, a key that never exists (so that a cluster answers
--          TRYAGAIN while it moves the keys), and the lock unless locking is off. Keys aside of the
--          prefix are not declared: a user without a right to them loses what they are for.
-- ARGV[1]  the head, JSON by name: storage/store.py writes it from a Request.
-- ARGV[2]  and all that follow: one Change each, JSON by name; at the end `messages` texts: the last
--          arguments of commands in `push`, which have their numbers, and keys and definitions of
--          twins, which are the number of the first one and how many twins there are.
--
-- Returns {head, answers, rows}, or {head} if nothing was asked and nothing is due. The head is
-- JSON by name, see Reply in storage/rows.py. Of the answers, those are returned that are not 'done',
-- each after the number of its change: a word, 'refused: <why>', a row, or an array of keys. A row is
-- JSON by name, and all rows are one array. Scores and times are texts, because cjson rounds numbers
-- to 14 digits.
--
-- Writes keep an order, because Redis checks the memory limit only before the first write of a
-- script, and not at all for a command that only removes or for EXPIRE: what adds comes first.

-- include: start

local head = cjson.decode(ARGV[1])
local token, look = head.token, head.look
local holder = lock and redis.pcall('GET', lock)
if type(holder) == 'table' then
  holder = 'a key that is not a lock'
end

-- Notes that a standby is there. Returns the error if Redis takes no writes: then this beat could not
-- take over either. Without a right to the key it stands by all the same.
local function stand_by()
  local noted = redis.pcall('ZADD', aside .. 'beats', now_text, token .. ' lock')
  local err = type(noted) == 'table' and noted.err or ''
  for _, word in ipairs({'READONLY', 'OOM ', 'MISCONF', 'NOREPLICAS'}) do
    if string.find(err, word, 1, true) then
      return noted
    end
  end
end

-- Returns how many entries are due within a tenth of a second, 0 if that is far away: beats come
-- back every five seconds.
local function crowd_at(at)
  return at < now + 7 and redis.call(
    'ZCOUNT', schedule, string.format('%.17g', at), string.format('%.17g', at + 0.1)) or 0
end

-- Idle turns return before the functions below are made, which takes longer than the turn itself.
if head.idle then
  if holder and holder ~= token and holder ~= head.dead then
    return stand_by() or {cjson.encode({
      standing = 0, now = now_text, holder = holder,
      holder_ttl = redis.call('PTTL', lock) / 1000})}
  end
  local first = redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local said = redis.pcall('ZRANGE', aside .. 'inbox', 0, 0, 'WITHSCORES')[2]
  local next_due = math.min(tonumber(first) or math.huge, tonumber(said) or math.huge)
  local is_odd = said and tonumber(said) > now + 2  -- the clock went back
  if next_due > now and not is_odd and (not lock or (holder == token and head.leads)) then
    local members = redis.call('ZCARD', schedule)
    if lock then
      redis.call('PEXPIRE', lock, head.ttl)
    else
      redis.pcall('ZADD', aside .. 'beats', now_text, token)
    end
    return {string.format(
      '{"standing":1,"now":"%s","next":"%.17g","members":%d,"crowd":%d}',
      now_text, next_due, members, crowd_at(next_due))}
  end
end

-- include: side

-- include: lines

-- include: row

-- include: push

-- include: change

-- include: share

-- include: run_time

local reply = {standing = 1, now = now_text, holder = holder or nil}
if lock and (not holder or holder == head.dead or (holder == token and not head.leads)) then
  -- Also if the reply that told this beat so was lost.
  reply.standing, reply.holder = 2, token
  redis.call('SET', lock, token, 'PX', head.ttl)
  side('HSET', 'stats', 'leader', now_text .. ' ' .. token)
  side('HDEL', 'stats', 'problem')  -- that of an earlier beat
elseif lock and holder ~= token then
  reply.standing, reply.holder_ttl = 0, redis.call('PTTL', lock) / 1000
  local refused = look and stand_by()
  if refused then
    return refused
  end
end

local before = redis.call('ZCARD', schedule)
local answers, rows, keys = {}, {}, {}
for i = 2, first_message do
  local answer = head.leads_only and reply.standing == 0 and 'stale' or apply(ARGV[i])
  if answer ~= 'done' then
    answers[#answers + 1], answers[#answers + 2] = i - 1, answer
  end
end
-- No beat waits longer than five seconds, or than for the next entry; of several beats without a
-- lock, that of its share. Without a right to publish they find it then.
if first_due <= now or (first_due < now + 5 and (#beats_seen(10) > 1 or redis.call(
    'ZCOUNT', schedule, '(' .. now_text, string.format('(%.17g', first_due)) == 0)) then
  redis.pcall('PUBLISH', KEYS[3], 'due')
end
if not head.counts_id then
  note_between(before)
end
-- A save goes no further, and makes none of the functions of a look.
if look then
-- include: look

-- include: note

  if reply.standing == 1 then
    rows, reply.next, keys = look_around(look)
    local next_due = tonumber(reply.next)
    if next_due and next_due > now then
      reply.crowd = crowd_at(next_due)
    end
  end
  reply.version = calendars_version()
  reply.members = redis.call('ZCARD', schedule)
  note_turn(reply, before, keys or {})
else
  reply.members = redis.call('ZCARD', schedule)
end
reply.side_error = side_error
if lock and reply.standing == 1 then
  redis.call('PEXPIRE', lock, head.ttl)  -- after this write Redis refuses none for lack of memory
end
return {cjson.encode(reply), answers, together(rows)}
