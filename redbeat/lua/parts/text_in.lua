-- text_in(field) returns the text in a field of an entry that is a text in quotes.

local function text_in(field)
  return string.match(field, '^"?(.-)"?$')
end
