-- Take over an entry with its history, unless something is there already.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  entry (hash)
-- KEYS[3]  statics (set of names)
-- ARGV[1]  name
-- ARGV[2]  score
-- ARGV[3]  '1' when it is a static entry
-- ARGV[4..7] definition, meta, policy, runtime; '' = none
--
-- Returns 1, or 0 when the key exists: nothing is written.

if redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
for at, field in ipairs({'definition', 'meta', 'policy', 'runtime'}) do
  if ARGV[3 + at] ~= '' then
    redis.call('HSET', KEYS[2], field, ARGV[3 + at])
  end
end
redis.call('ZADD', KEYS[1], ARGV[2], KEYS[2])
if ARGV[3] == '1' then
  redis.call('SADD', KEYS[3], ARGV[1])
end
return 1
