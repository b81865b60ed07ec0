-- Acquire the lock, or extend the lock if the caller already holds it.
--
-- KEYS[1]  The lock (string).
-- ARGV[1]  The token of the caller.
-- ARGV[2]  The time to live of the lock, in milliseconds.
--
-- Returns 1 if the caller now holds the lock, 0 if another beat holds the lock.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
