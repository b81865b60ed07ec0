-- Acquire the lock, or keep it if the caller holds it already.
--
-- KEYS[1]  lock (string)
-- ARGV[1]  token
-- ARGV[2]  time to live, milliseconds
--
-- Returns 1 if the caller holds the lock, 0 if another beat does.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
