-- Keep the lock, record what was dispatched, claim what is due: one turn of a beat.
--
-- KEYS[1]  schedule (zset: entry key -> due, UNIX seconds; below 0 = parked)
-- KEYS[2]  statics (set of names)
-- KEYS[3]  quarantine (hash)
-- KEYS[4]  lock (string), left out when locking is off
-- ARGV[1]  key prefix
-- ARGV[2]  claim id given to what is claimed now
-- ARGV[3]  limit: how many entries to claim at most
-- ARGV[4]  lease: seconds until the claims made now expire
-- ARGV[5]  lock token of the caller
-- ARGV[6]  lock time to live, milliseconds
-- ARGV[7]  token of a leader known to be dead, or ''
-- ARGV[8]  retry: seconds until a member without a definition is looked at again
-- ARGV[9]  number of completions that follow
-- ARGV[10..] per completion five values: entry key, claim id, next score (seconds; below 0 = park),
--          meta or '' (leave), runtime or '' (leave). With meta '' the runtime 'again' puts the
--          occurrence back: the next claim is told the same due instant as this one.
--
-- Returns {standing, now, next score or '', members, statics, quarantined, holder, holder's
--          PTTL in ms, completions, claims}
--   standing    1 leader (or no lock), 2 just became leader (nothing is claimed), 0 standby
--   completions per completion {code, meta}: 1 recorded, 0 refused: the claim is not ours any more,
--               2 meta was changed by somebody else: nothing written, claim kept, meta is theirs
--   claims      per entry {key, due, definition, meta, policy, runtime}, or {key, due} when there
--               is no definition, or {key, due, error} when the key is not a hash
--
-- The field `claim` of an entry: "<id> <due> <expires> <sha1 of definition and policy> <sha1 of meta>".

local schedule, statics, quarantine, lock = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local prefix, claim_id, limit, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local token, ttl, dead, retry = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local completions = tonumber(ARGV[9])

local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

local function seconds(number)
  return string.format('%.6f', number)
end

local function digests(definition, meta, policy)
  return redis.sha1hex((definition or '') .. '\n' .. (policy or '')), redis.sha1hex(meta or '')
end

local function keep_lock()
  if not lock then
    return 1, '', 0
  end
  local holder = redis.pcall('GET', lock)
  if type(holder) == 'table' then
    return 0, 'a key that is not a lock', redis.call('PTTL', lock)
  end
  if holder == token then
    redis.call('PEXPIRE', lock, ttl)
    return 1, token, tonumber(ttl)
  end
  if not holder or (dead ~= '' and holder == dead) then
    redis.call('SET', lock, token, 'PX', ttl)
    return 2, token, tonumber(ttl)
  end
  return 0, holder, redis.call('PTTL', lock)
end

local function complete(key, id, score, meta, runtime)
  local found = redis.pcall('HMGET', key, 'claim', 'definition', 'policy', 'meta')
  if found.err or not found[1] or not found[2] then
    return {0}
  end
  local held, due, expires, definition_digest, meta_digest =
    string.match(found[1], '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
  if held ~= id or not redis.call('ZSCORE', schedule, key) then
    return {0}
  end
  local now_definition, now_meta = digests(found[2], found[4], found[3])
  if meta ~= '' and now_meta ~= meta_digest then
    redis.call('HSET', key, 'claim',
      table.concat({held, due, expires, definition_digest, now_meta}, ' '))
    return {2, found[4] or ''}
  end
  if now_definition ~= definition_digest or now_meta ~= meta_digest then
    score = seconds(now)
  end
  if meta ~= '' then
    redis.call('HSET', key, 'meta', meta, 'runtime', runtime)
  end
  if meta == '' and runtime == 'again' then
    redis.call('HSET', key, 'claim', table.concat({'-', due, '0 - -'}, ' '))
  else
    redis.call('HDEL', key, 'claim')
  end
  redis.call('ZADD', schedule, 'XX', score, key)
  return {1}
end

local function read(member)
  local found = redis.pcall('HMGET', member, 'definition', 'meta', 'policy', 'runtime', 'claim')
  return found, found.err
end

-- A member may name an entry without the prefix; it is replaced by the entry's key.
local function resolve(member)
  local found, err = read(member)
  if err or found[1] then
    return member, found, err
  end
  local named = prefix .. member
  local other, other_err = read(named)
  if other_err or not other[1] then
    return member, found, nil
  end
  redis.call('ZREM', schedule, member)
  return named, other, nil
end

local standing, holder, pttl = keep_lock()

local results = {}
for i = 1, completions do
  local at = 10 + (i - 1) * 5
  results[i] = complete(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end

local claims, scores = {}, {}
if standing == 1 and limit > 0 then
  local members = redis.call(
    'ZRANGEBYSCORE', schedule, 0, seconds(now), 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #members, 2 do
    local key, found, err = resolve(members[i])
    local due = math.min(tonumber(members[i + 1]), now)
    if due <= 0 then
      due = now
    end
    local again = now + retry
    if err then
      claims[#claims + 1] = {key, seconds(due), err}
    elseif not found[1] then
      claims[#claims + 1] = {key, seconds(due)}
    else
      local expires = 0
      if found[5] then
        local _, earlier, until_then = string.match(found[5], '^(%S+) (%S+) (%S+)')
        due, expires = tonumber(earlier) or due, tonumber(until_then) or 0
      end
      if expires > now then
        again = math.min(expires, now + lease)
      else
        again = now + lease
        local definition_digest, meta_digest = digests(found[1], found[2], found[3])
        redis.call('HSET', key, 'claim', table.concat(
          {claim_id, seconds(due), seconds(again), definition_digest, meta_digest}, ' '))
        claims[#claims + 1] = {
          key, seconds(due), found[1], found[2] or '', found[3] or '', found[4] or ''}
      end
    end
    scores[#scores + 1] = seconds(again)
    scores[#scores + 1] = key
  end
  if #scores > 0 then
    redis.call('ZADD', schedule, unpack(scores))
  end
end

local first = redis.call('ZRANGEBYSCORE', schedule, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {
  standing, seconds(now), first[2] or '', redis.call('ZCARD', schedule),
  redis.call('SCARD', statics), redis.call('HLEN', quarantine), holder, pttl, results, claims}
