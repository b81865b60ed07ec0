-- read_claim(claim, now) returns what stands in the field `claim` of an entry: the id of the claim, '-' for
-- an occurrence that was put back; when it was due; when the claim ends, UNIX seconds. Nothing where
-- there is no claim. Where a time is given, a claim that ends long after it has ended: no lease is
-- that long, so the clock was ahead when it was made.

local LONGEST_CLAIM = 60

local function read_claim(claim, now)
  local id, due, expires = string.match(claim or '', '^%["(%S+) (%S+) ([^%s"]+)"')
  expires = tonumber(expires) or 0
  if now and expires > now + LONGEST_CLAIM then
    expires = 0
  end
  return id, due, expires
end
