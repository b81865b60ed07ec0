-- note_turn(reply, before, keys) notes what spans entries: the keys in hand, the beat, the counts,
-- and how many members the schedule has. `before` is their number before the changes.
--
-- The schedule is lost if it is absent although the note says more than one member, or if the note
-- says at least ten and nine tenths are gone. The field `lost` of the stats then has a mark until a
-- scan of all keys has ended, the time of the loss; 'new' if there was no note. Deletes lower the
-- note. A member that vanishes alone was taken out by a program.

local function note_in_hand(keys)
  if head.in_hand and #keys > 0 then
    side('HSET', 'hands', token, cjson.encode(look.only and keys[1] or keys))
  elseif head.noted then
    side('HDEL', 'hands', token)
  end
end

-- Returns the notes of beats that vanished with keys in hand: a beat at work is seen more often than
-- every five seconds.
local function vanished()
  local notes, found, seen = side('HSCAN', 'hands', 0, 'COUNT', 1000), {}, {[token] = true}
  notes = notes and notes[2] or {}
  for _, beat in ipairs(not lock and beats_seen(5) or {}) do
    seen[beat] = true
  end
  for i = 1, #notes, 2 do
    if not seen[notes[i]] then
      found[#found + 1] = {notes[i], notes[i + 1]}
    end
  end
  return #found > 0 and found or nil
end

local function note_counts(reply, before)
  local found = side('HMGET', 'stats', 'batch', 'members', 'lost', 'last_tick')
  reply.lost = found and found[3] or nil
  local back = (found and tonumber(found[4]) or 0) - now
  reply.back = back > 1 and back or nil  -- so far the clock went back since the last turn
  if not found or found[1] == head.counts_id then
    return
  end
  if reply.standing == 0 and not next(head.counts or {}) then
    return  -- a standby only says that it is there
  end
  local fields = {'batch', head.counts_id}
  if reply.standing > 0 then
    fields[3], fields[4] = 'last_tick', now_text
    local noted = tonumber(found[2]) or -1
    if noted < 0 or (before == 0 and noted > 1) or (noted >= 10 and before * 10 <= noted) then
      reply.lost = noted < 0 and 'new' or now_text
      fields[5], fields[6] = 'lost', reply.lost
    end
    fields[#fields + 1], fields[#fields + 2] = 'members', reply.members
  end
  side('HSET', 'stats', unpack(fields))
  for name, count in pairs(head.counts or {}) do
    side('HINCRBY', 'stats', name, count)
  end
end

local function note_turn(reply, before, keys)
  if head.in_hand or head.noted then
    note_in_hand(keys)
    if head.in_hand and (reply.standing == 2 or not lock) then
      reply.hands = vanished()
    end
  end
  if not head.counts_id then
    return
  end
  note_beat()
  note_counts(reply, before)
  if is_new and not lock then
    side('HDEL', 'stats', 'problem')  -- that of an earlier beat
  end
  local count = redis.pcall('SCARD', statics)
  reply.statics = type(count) == 'number' and count or nil
  reply.quarantined = side('HLEN', 'quarantine')
end
