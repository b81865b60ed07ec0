-- Remove members from the schedule if their entry hashes no longer exist.
--
-- KEYS[1]  The schedule (zset).
-- KEYS[2]  A key that never exists, so that a cluster answers TRYAGAIN while it moves the keys.
-- KEYS[3]  The stats (hash), see look_for_loss.lua; or the schedule key.
-- ARGV[1]  The key prefix.
-- ARGV[2..] The members of the schedule that had no definition when they were due: entry keys or
--          entry names.
--
-- Returns the members that were removed. A member stays in the schedule, and becomes due now, if
-- its hash has a definition by now, or if its key is not a hash.

local schedule, stats = KEYS[1], KEYS[3]

-- include: look_for_loss

local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))
local removed = {}
for at = 2, #ARGV do
  local member, prefix = ARGV[at], ARGV[1]
  local key = string.sub(member, 1, #prefix) == prefix and member or prefix .. member
  if redis.pcall('HEXISTS', key, 'definition') ~= 0 then
    redis.call('ZADD', schedule, 'XX', now, member)
  elseif redis.call('ZREM', schedule, member) == 1 then
    removed[#removed + 1] = member
  end
end
lower_note(#removed)
return removed
