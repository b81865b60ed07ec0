-- run_time() returns the seconds for which this script has run. A script that uses run_time() must
-- call TIME at its start, and store the reply in `clock`. In Redis 7.2 and later, TIME returns the
-- same time throughout a script, so run_time() uses os.clock. Before Redis 7.2, scripts have no
-- os.clock, so run_time() calls TIME.
--
-- out_of_time(limit) returns whether this script has run for more than `limit` microseconds. If
-- out_of_time() is true, a script that handles many entries stops after a part of the entries, so
-- that Redis can serve other clients. Call out_of_time() only once per CHECKED entries, because a
-- call takes as long as the read of an entry.

local _, cpu_seconds = pcall(function() return os.clock end)
cpu_seconds = type(cpu_seconds) == 'function' and cpu_seconds or function()
  local time = redis.call('TIME')
  return time[1] - clock[1] + (time[2] - clock[2]) / 1000000
end
local started = cpu_seconds()

local function run_time()
  return cpu_seconds() - started
end

local CHECKED = 20

local function out_of_time(limit)
  return run_time() * 1000000 > tonumber(limit)
end
