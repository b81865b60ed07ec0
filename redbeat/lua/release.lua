-- Give up the lock, if it is ours, and tell those who wait for it.
--
-- KEYS[1]  lock (string)
-- KEYS[2]  beats (zset), see claim.lua
-- ARGV[1]  token
-- ARGV[2]  wake-up channel
-- ARGV[3]  member of the beats that this one was
--
-- Returns 1 when it was released, 0 when somebody else holds it or nobody.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.pcall('ZREM', KEYS[2], ARGV[3])
  -- A user may be forbidden to publish; beats that wait look by themselves every second.
  redis.pcall('PUBLISH', ARGV[2], 'lock')
  return 1
end
return 0
