-- Let the lock live longer, if it is ours.
--
-- KEYS[1]  lock (string)
-- ARGV[1]  token
-- ARGV[2]  time to live from now, milliseconds
--
-- Returns 1 when it was extended, 0 when somebody else holds it or nobody.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
