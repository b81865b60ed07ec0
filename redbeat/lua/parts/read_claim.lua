-- read_claim(claim) returns what stands in the field `claim` of an entry: the id of the claim, '-' for
-- an occurrence that was put back; when it was due; when the claim ends, UNIX seconds. Nothing where
-- there is no claim.

local function read_claim(claim)
  local id, due, expires = string.match(claim or '', '^%["(%S+) (%S+) ([^%s"]+)"')
  return id, due, tonumber(expires) or 0
end
