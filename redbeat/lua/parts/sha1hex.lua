-- sha1hex(text) returns the SHA-1 of a string as hexadecimal digits.

-- A fake Redis server in tests may lack redis.sha1hex. Without redis.sha1hex, sha1hex(text) returns
-- the text without white space, quotes and backslashes in place of a digest.
local sha1hex = redis.sha1hex or function(text)
  return 'text:' .. string.gsub(text, '[%s%c"\\]', '')
end
