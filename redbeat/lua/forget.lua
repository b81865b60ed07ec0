-- Remove members whose hash is gone from the schedule.
--
-- KEYS[1]  schedule (zset)
-- KEYS[2]  a key that never exists: while a cluster moves the slot, its nodes answer TRYAGAIN
-- ARGV[1]  key prefix
-- ARGV[2..] members: entry keys that had no definition when they were due, or names of such entries
--
-- Returns the members that were removed. A member whose hash has a definition again, or whose key now
-- has another type, is due now instead.

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))
local removed = {}
for at = 2, #ARGV do
  local member, prefix = ARGV[at], ARGV[1]
  local key = string.sub(member, 1, #prefix) == prefix and member or prefix .. member
  if redis.pcall('HEXISTS', key, 'definition') ~= 0 then
    redis.call('ZADD', KEYS[1], 'XX', now, member)
  elseif redis.call('ZREM', KEYS[1], member) == 1 then
    removed[#removed + 1] = member
  end
end
return removed
