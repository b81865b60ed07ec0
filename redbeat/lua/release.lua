-- Release the lock if the caller holds it, and wake up standbys.
--
-- KEYS[1]  The lock (string).
-- KEYS[2]  The beats (zset), see claim.lua.
-- ARGV[1]  The token of the caller.
-- ARGV[2]  The wake-up channel.
-- ARGV[3]  The member of the beats to remove: the token of the caller with a suffix, see claim.lua.
--
-- Returns 1 if the lock was released, 0 if the caller did not hold the lock.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.pcall('ZREM', KEYS[2], ARGV[3])
  -- An error of PUBLISH is ignored, because the Redis user may have no right to publish. A standby
  -- that receives no message finds the free lock at its next check, within a second.
  redis.pcall('PUBLISH', ARGV[2], 'lock')
  return 1
end
return 0
