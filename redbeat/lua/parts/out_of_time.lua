-- out_of_time(began, limit) returns whether more than `limit` microseconds have passed since `began`,
-- a reply of TIME. A script that handles many entries then stops after a part of them, so that Redis
-- can serve others. Call the function once per CHECKED entries, because it takes as long as a read.

local CHECKED = 20

local function out_of_time(began, limit)
  local present = redis.call('TIME')
  return (present[1] - began[1]) * 1000000 + present[2] - began[2] > tonumber(limit)
end
