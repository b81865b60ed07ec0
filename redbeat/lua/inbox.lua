-- Append one line to the inbox of an entry, without reading what else is stored: a trigger, or the
-- end of a run.
--
-- KEYS     the schedule, the entry, a key that never exists (see turn.lua).
-- ARGV     the prefix of keys aside, the line (one ASCII JSON value), its kind, the wake-up channel,
--          the most lines, the most bytes, and '' or the seconds for which the line has waited (it
--          then gets the time as its last element).
--
-- Returns 'done', 'absent', 'full', 'quarantined' or 'unscheduled'; the last two not for an end. A
-- line that is there already, at whatever time, is not added again. If the inbox is full, the oldest
-- end makes room; without one, the line is refused, but an end is dropped and done. A state that is
-- longer than an inbox may be is full of runs that wait.
--
-- Entries with an inbox stand in a key aside, with the time when they are to be taken in: at once
-- for a trigger, and an end that another run waits for, else in a second. The score is
-- left alone, because it may be the nominal time of a run; without a right to the key aside the
-- entry is made due instead.

-- include: lines

local schedule, entry = KEYS[1], KEYS[2]
local aside, line, is_end, channel = ARGV[1], ARGV[2], ARGV[3] == 'end', ARGV[4]
local most_lines, most_bytes, age = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

-- Returns whether the inbox has no room, after the oldest ends were dropped.
local function make_room(lines)
  local _, count = string.gsub(lines or '', ',\n', '')
  while lines and (count + 2 > most_lines or #lines + #line + 4 > most_bytes) do
    local found
    lines, found = without(lines, '["end"')
    if not found then
      return lines, true
    end
    count = count - 1
  end
  return lines, #line + 2 > most_bytes
end

local function refusal(state)
  if redis.pcall('HEXISTS', aside .. 'quarantine', entry) == 1 then
    return 'quarantined'
  end
  if not redis.call('ZSCORE', schedule, entry) then
    return 'unscheduled'
  end
  return state and #state > most_bytes and 'full'
end

local found = redis.pcall('HMGET', entry, 'definition', 'inbox', 'waits', 'beat_state')
if found.err and not string.find(tostring(found.err), 'WRONGTYPE', 1, true) then
  redis.call('HGET', entry, 'definition')  -- fails again, and ends the script with its own error
end
if found.err or not found[1] then
  return 'absent'
end
local refused = not is_end and refusal(found[4])
if refused then
  return refused
end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local known = ',\n' .. line .. ',\n'
if age ~= '' then
  known = ',\n' .. string.sub(line, 1, -2) .. ','
  line = string.format('%s,%.6f]', string.sub(line, 1, -2), now - age)
end
if string.find(',\n' .. (inside(found[2]) or '') .. ',\n', known, 1, true) then
  return 'done'
end
local lines, full = make_room(inside(found[2]))
if full then
  return is_end and 'done' or 'full'
end
redis.call('HSET', entry, 'inbox', bracketed(lines and lines .. ',\n' .. line or line))
-- Older runs without an end are not lost: nobody reported ends. Users have no right to HSETNX.
if is_end and redis.pcall('HEXISTS', aside .. 'stats', 'reports_since') == 0 then
  redis.pcall('HSET', aside .. 'stats', 'reports_since', string.format('%.6f', now))
end
-- How many messages beats had sent tells later whether workers are silent, or have nothing to do.
if is_end then
  local sent = redis.pcall('HGET', aside .. 'stats', 'dispatched')
  sent = type(sent) == 'string' and sent or '0'
  redis.pcall('HSET', aside .. 'stats', 'last_report', string.format('%.6f %s', now, sent))
end
local at_once = not is_end or (found[3] and string.find(line, found[3], 1, true))
local taken_at = at_once and now or now + 1
local added = redis.pcall('ZADD', aside .. 'inbox', 'LT', taken_at, entry)
if type(added) == 'table' and at_once then
  redis.call('ZADD', schedule, 'XX', now, entry)
end
if at_once then
  redis.pcall('PUBLISH', channel, 'due')
end
return 'done'
