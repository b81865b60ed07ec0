-- sha1hex(text) returns the SHA-1 of a string as hexadecimal digits.

-- A fake server in tests may lack redis.sha1hex. Then the string without blanks and quotes is the
-- digest.
local sha1hex = redis.sha1hex or function(text)
  return 'text:' .. string.gsub(text, '[%s%c"\\]', '')
end
