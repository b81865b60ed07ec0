-- sha1hex(text) returns the SHA-1 of a text in hexadecimal digits.

-- A fake server may lack redis.sha1hex; the text without blanks and quotes serves as a digest then.
local sha1hex = redis.sha1hex or function(text)
  return 'text:' .. string.gsub(text, '[%s%c"\\]', '')
end
