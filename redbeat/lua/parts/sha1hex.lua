-- sha1hex(text) returns the SHA-1 of a string as hexadecimal digits.

-- A fake server in tests may lack redis.sha1hex. There, the string without blanks and quotes
-- replaces the digest.
local sha1hex = redis.sha1hex or function(text)
  return 'text:' .. string.gsub(text, '[%s%c"\\]', '')
end
