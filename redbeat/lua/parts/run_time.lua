-- run_time() returns seconds on a clock that goes on while the script runs; `started` is its start.

-- Scripts of Redis before 7.2 have no os.clock, and those after it no TIME that goes on.
local _, run_time = pcall(function() return os.clock end)
run_time = type(run_time) == 'function' and run_time or function()
  local time = redis.call('TIME')
  return time[1] - clock[1] + (time[2] - clock[2]) / 1000000
end
local started = run_time()
