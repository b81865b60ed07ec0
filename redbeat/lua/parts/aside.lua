-- aside(command, key, ...) runs a command on a key outside the prefix. If the Redis user may not
-- access such keys, the script receives the schedule key instead. For the schedule key, aside() does
-- nothing and returns 0.

local function aside(command, key, ...)
  if key == KEYS[1] then
    return 0
  end
  return redis.call(command, key, ...)
end
