-- Release the lock if the caller holds it, and wake up standbys.
--
-- KEYS[1]  lock (string)
-- KEYS[2]  beats (zset), see claim.lua
-- ARGV[1]  token
-- ARGV[2]  wake-up channel
-- ARGV[3]  member of the beats zset for the caller
--
-- Returns 1 if the lock was released, 0 if the caller did not hold the lock.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.pcall('ZREM', KEYS[2], ARGV[3])
  -- The Redis user may lack the right to publish. Standbys also check the lock every second.
  redis.pcall('PUBLISH', ARGV[2], 'lock')
  return 1
end
return 0
