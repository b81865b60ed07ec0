-- digest_of(found, score) returns the SHA-1 of the texts of an entry, see digest_of() in
-- storage/rows.py. `covers` adds the score ('s') and the version of the calendars ('c').

-- A fake Redis server in tests may lack redis.sha1hex; the store then sends the texts themselves.
local sha1hex = redis.sha1hex or function(text)
  return text
end

local function prefixed(text)
  return text and #text .. ':' .. text or '-'
end

local function digest_of(found, covers, score)
  local text = prefixed(found[1]) .. prefixed(found[2]) .. prefixed(found[3]) .. prefixed(found[4])
  if covers then
    if string.find(covers, 's', 1, true) then
      text = text .. prefixed(score)
    end
    if string.find(covers, 'c', 1, true) then
      text = text .. prefixed(calendars_version())
    end
  end
  return sha1hex(text)
end
