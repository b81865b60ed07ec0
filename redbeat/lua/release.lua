-- Give up the lock, if it is ours.
--
-- KEYS[1]  lock (string)
-- ARGV[1]  token
--
-- Returns 1 when it was released, 0 when somebody else holds it or nobody.

if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
