-- sha1hex(text) returns the SHA-1 of a text in hexadecimal digits.

-- A fake server may lack the function; a text without blanks and quotes is a digest too.
local sha1hex = redis.sha1hex or function(text)
  return 'text:' .. string.gsub(text, '[%s%c"\\]', '')
end
