-- read_claim(claim, now) returns the parts of the field `claim` of an entry, see claim.lua:
--   the id of the claim, '-' for an occurrence that was put back
--   when the occurrence was due, as a string of UNIX seconds
--   when the claim ends, UNIX seconds; 0 if there is no claim
--   when the occurrence was first claimed, '-' if no message can have been sent
--   the delivery, 'l' or 'x'
-- A claim of RedBeat 3.0 has only the first three parts. A claim in a newer format ends PATIENCE
-- seconds later than it says. If `now` is passed, a claim that ends more than LONGEST_CLAIM seconds
-- after `now` counts as ended. No lease is that long, so the clock of Redis was ahead when the
-- claim was made.
--
-- put_back_head(due, decided) returns the head of a claim that was put back. `decided` has when the
-- occurrence was first claimed and the delivery, separated by a space.
--
-- Another program may have written the field, so a time that is not a plain number of seconds is
-- nil. LATEST is near the end of the year 9999.
local FORMAT, PATIENCE, LONGEST_CLAIM, LATEST = 2, 30, 90, 253402128000

local function instant(text)
  local seconds = string.match(text or '', '^%d+%.?%d*$') and tonumber(text)
  return seconds and seconds <= LATEST and text or nil
end


local function read_claim(claim, now)
  local head = string.match(claim or '', '^%["([^"]*)"')
  local id, due, expires, rest = string.match(head or '', '^(%S+) (%S+) (%S+)(.*)$')
  local since, delivery, format = string.match(rest or '', '^ (%S+) (%a)(%d+)')
  local ends = tonumber(instant(expires)) or 0
  if ends > 0 and (tonumber(format) or 0) > FORMAT then
    ends = ends + PATIENCE
  end
  if now and ends > now + LONGEST_CLAIM then
    ends = 0
  end
  return id, instant(due), ends, since == '-' and since or instant(since), delivery
end

local function put_back_head(due, decided)
  return '- ' .. due .. ' 0 ' .. decided .. FORMAT
end
