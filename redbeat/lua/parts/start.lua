-- The keys of the schedule, what its keys begin with, and the time of Redis in UNIX seconds.

local schedule, statics, lock = KEYS[1], KEYS[2], KEYS[4]
local prefix = string.sub(schedule, 1, -#':schedule' - 1)
local aside = (string.byte(prefix) == 46 and '-' or '.') .. prefix .. ':'
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local now_text = string.format('%.6f', now)
