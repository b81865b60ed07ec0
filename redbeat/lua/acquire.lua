-- Take the lock, or keep it when it is ours already.
--
-- KEYS[1]  lock (string)
-- ARGV[1]  token
-- ARGV[2]  time to live, milliseconds
--
-- Returns 1 when the lock is ours, 0 when somebody else holds it.

local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
