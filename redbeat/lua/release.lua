-- Release the lock if the caller holds it, and wake up standbys.
--
-- KEYS[1]  The lock (string).
-- ARGV[1]  The token of the caller.
-- ARGV[2]  The wake-up channel.
--
-- Returns 1 if the lock was released, 0 if the caller did not hold the lock.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  -- An error of PUBLISH is ignored, because the Redis user may have no right to publish. A standby
  -- that receives no message finds the free lock at its next check, within a second.
  redis.pcall('PUBLISH', ARGV[2], 'lock')
  return 1
end
return 0
