-- read_claim(claim, now) returns six values from the field `claim` of an entry, see claim.lua:
--   Value 1 is the id of the claim, or '-' if the claim of the occurrence was released.
--   Value 2 is when the occurrence was due, as a string of UNIX seconds.
--   Value 3 is when the claim ends, in UNIX seconds, or 0 if there is no claim.
--   Value 4 is when the occurrence was first claimed, or '-' if no message can have been sent.
--   Value 5 is the delivery, 'l' or 'x'.
--   Value 6 is whether the claim has an unknown format, probably the format of a later version.
--
-- A claim of RedBeat 3.0 has only the first three values. A claim in an unknown format counts as
-- ended only PATIENCE seconds after the end that it contains. If `now` is passed, a claim that ends
-- more than LONGEST_CLAIM seconds after `now` counts as ended. No lease is longer than
-- LONGEST_CLAIM, so the clock of Redis must have been ahead when a claim with a later end was made.
--
-- put_back_head(due, decided) returns the head of a released claim. `decided` is value 4 and
-- value 5 of the claim, separated by a space.
--
-- A time in a claim that is not a plain number of seconds is read as nil, because another program
-- may have written the claim. LATEST, the latest valid time, is near the end of the year 9999.
local FORMAT, PATIENCE, LONGEST_CLAIM, LATEST = 2, 30, 90, 253402128000

-- The maximum length in bytes of a time, and of the head of a claim. Patterns are matched only
-- against short texts, because another program may have written a text that takes long to match.
local LONGEST_INSTANT, LONGEST_HEAD = 32, 512

local function instant(text)
  if not text or #text > LONGEST_INSTANT or not string.find(text, '^%d+%.?%d*$') then
    return nil
  end
  local seconds = tonumber(text)
  return seconds and seconds <= LATEST and text or nil
end

local function read_claim(claim, now)
  local head = string.match(string.sub(claim or '', 1, LONGEST_HEAD), '^%["([^"]*)"')
  local id, due, expires, rest = string.match(head or '', '^(%S+) (%S+) (%S+)(.*)$')
  local since, delivery, format, more = string.match(rest or '', '^ (%S+) (%a)(%d+)(.*)$')
  local ends = instant(expires)
  local known = ends and (rest == '' or (more == '' and tonumber(format) <= FORMAT))
  ends = tonumber(ends) or 0
  if ends > 0 and not known then
    ends = ends + PATIENCE
  end
  if now and ends > now + LONGEST_CLAIM then
    ends = 0
  end
  since = since == '-' and since or instant(since)
  return id, instant(due), ends, since, delivery, not known and (claim or '') ~= ''
end

local function put_back_head(due, decided)
  return '- ' .. due .. ' 0 ' .. decided .. FORMAT
end
