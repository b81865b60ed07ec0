-- Extend the lock if the caller holds it.
--
-- KEYS[1]  The lock (string).
-- ARGV[1]  The token of the caller.
-- ARGV[2]  The new time to live of the lock, in milliseconds.
--
-- Returns 1 if the lock was extended, 0 if the caller does not hold the lock.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
