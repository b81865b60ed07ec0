-- look_for_loss(noted, before, members) returns the fields of the stats to write, each followed by
-- its value. `noted` is the stored note or false, `before` the number of members before this
-- script, `members` their number now.
-- keep_loss(members) marks a loss if the schedule is absent. Call it before the first change of the
-- schedule, because a save or a static entry would hide that the schedule is absent.
-- lower_note(removed) notes that a delete removed this number of members.
-- note_in_stats(field, value, ...) writes fields of the stats.
--
-- The field `members` of the stats notes how many members the schedule had when a beat last looked.
-- Deletes through RedBeat lower the note; a number below 0 is no note, because saves do not raise
-- it. The schedule is lost if it is absent although the note says more than one, or if the note
-- says at least ten and nine tenths of them are gone. The field `lost` of the stats then has a mark
-- until sweep.lua has scanned all keys: the time of the loss. The mark 'new' means that the stats
-- had no note, as at the first start of a beat. A member that vanishes alone was taken out by a
-- program.
--
-- Errors are ignored, because a schedule must work without the stats. These functions need the
-- variables schedule and stats. If the Redis user has no access to the stats, `stats` is the
-- schedule key, see aside.lua.

local function look_for_loss(noted, before, members)
  noted = tonumber(noted or nil) or -1
  if noted < 0 then
    return 'lost', 'new', 'members', members
  end
  if (before == 0 and noted > 1) or (noted >= 10 and before * 10 <= noted) then
    local time = redis.call('TIME')
    return 'lost', time[1] .. time[2], 'members', members
  end
  return 'members', members
end

local function note_in_stats(...)
  if stats ~= schedule then
    redis.pcall('HSET', stats, ...)
  end
end

local function keep_loss(members)
  local noted = members == 0 and stats ~= schedule and redis.pcall('HGET', stats, 'members')
  if type(noted) == 'string' and (tonumber(noted) or 0) > 1 then
    note_in_stats(look_for_loss(noted, members, members))
  end
end

local function lower_note(removed)
  if removed > 0 and stats ~= schedule and redis.pcall('HEXISTS', stats, 'members') == 1 then
    redis.pcall('HINCRBY', stats, 'members', -removed)
  end
end
