-- aside(command, key, ...) runs a command on a key that stands outside the prefix. It does nothing and
-- returns 0 where the user may not use such keys: the schedule's key is given in their place then.

local function aside(command, key, ...)
  if key == KEYS[1] then
    return 0
  end
  return redis.call(command, key, ...)
end
