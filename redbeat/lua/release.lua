-- Give up the lock, if it is ours, and tell those who wait for it.
--
-- KEYS[1]  lock (string)
-- ARGV[1]  token
-- ARGV[2]  wake-up channel
--
-- Returns 1 when it was released, 0 when somebody else holds it or nobody.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  -- A user may be forbidden to publish; beats that wait look by themselves every second.
  redis.pcall('PUBLISH', ARGV[2], 'lock')
  return 1
end
return 0
