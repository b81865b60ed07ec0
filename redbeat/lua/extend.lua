-- Extend the lock if the caller holds it.
--
-- KEYS[1]  lock (string)
-- ARGV[1]  token
-- ARGV[2]  time to live from now, milliseconds
--
-- Returns 1 if the lock was extended, 0 if the caller does not hold the lock.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
