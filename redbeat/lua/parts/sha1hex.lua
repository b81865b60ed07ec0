-- sha1hex(text) returns the SHA-1 of a string as hexadecimal digits.

-- A fake Redis server in tests may lack redis.sha1hex. In place of a digest, this function then
-- returns the string without white space, quotes and backslashes.
local sha1hex = redis.sha1hex or function(text)
  return 'text:' .. string.gsub(text, '[%s%c"\\]', '')
end
