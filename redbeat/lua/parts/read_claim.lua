-- read_claim(claim, now) returns what stands in the field `claim` of an entry, see claim.lua: the id of
-- the claim, '-' for an occurrence that was put back; when it was due; when the claim ends, UNIX seconds;
-- when the occurrence was first claimed, '-' where that does not matter; and what may be sent before it
-- is recorded, with the number of the format. Nothing where there is no claim. A claim of 3.0 has three
-- words. One whose format is newer than this one counts as held for a while after its end. Where a time is
-- given, a claim that ends long after it has ended: no lease is that long, so the clock was ahead when it
-- was made.

local FORMAT, PATIENCE, LONGEST_CLAIM = 2, 30, 90

local function read_claim(claim, now)
  local head = string.match(claim or '', '^%["([^"]*)"')
  local id, due, expires, rest = string.match(head or '', '^(%S+) (%S+) (%S+)(.*)$')
  local since, way, format = string.match(rest or '', '^ (%S+) (%a)(%d+)')
  local ends = tonumber(expires) or 0
  if ends > 0 and (tonumber(format) or 0) > FORMAT then
    ends = ends + PATIENCE
  end
  if now and ends > now + LONGEST_CLAIM then
    ends = 0
  end
  return id, due, ends, since, way
end
