-- sha1hex(text) returns the SHA-1 of a string as hexadecimal digits.

-- A fake Redis server in tests may lack redis.sha1hex. Without redis.sha1hex, this function returns
-- the text instead of a digest, but without white space, quotes and backslashes.
local sha1hex = redis.sha1hex or function(text)
  return 'text:' .. string.gsub(text, '[%s%c"\\]', '')
end
