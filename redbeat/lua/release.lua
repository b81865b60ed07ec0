-- Release the lock if the caller holds it, and wake up standbys.
--
-- KEYS[1]  lock (string)
-- KEYS[2]  beats (zset), see claim.lua
-- ARGV[1]  token
-- ARGV[2]  wake-up channel
-- ARGV[3]  member of the caller in the beats
--
-- Returns 1 if the lock was released, 0 if the caller did not hold it.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.pcall('ZREM', KEYS[2], ARGV[3])
  -- A user may lack the right to publish; standbys also look at the lock every second.
  redis.pcall('PUBLISH', ARGV[2], 'lock')
  return 1
end
return 0
