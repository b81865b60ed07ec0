-- is_denied(err) returns whether the user of Redis lacks the right to a command or a key.
--
-- side(command, name, ...) runs a command on a key aside of the prefix. Its errors stop nothing: it
-- returns nil, and the first error is `side_error`.
--
-- calendars_version() returns the version of the calendars, or nil. No right to read it, and a key
-- of a wrong type, count as no version. Any other error ends the turn, because a pcall would
-- swallow a cluster's TRYAGAIN.

-- Redis 6 says it in other words.
local function is_denied(err)
  return string.find(err, 'ermission', 1, true) or string.find(err, "executing the script can't")
end

local side_error

local function side(command, name, ...)
  local reply = redis.pcall(command, aside .. name, ...)
  if type(reply) == 'table' and reply.err then
    side_error = side_error or name .. ': ' .. reply.err
    return nil
  end
  return reply
end

local version

local function calendars_version()
  if version == nil then
    local reply = redis.pcall('GET', aside .. 'calendars-version')
    if type(reply) == 'table' then
      if not is_denied(reply.err) and not string.find(reply.err, 'WRONGTYPE', 1, true) then
        redis.call('GET', aside .. 'calendars-version')  -- fails again, and ends the script
      end
      side_error, reply = side_error or 'calendars-version: ' .. reply.err, false
    end
    version = reply
  end
  return version or nil
end
