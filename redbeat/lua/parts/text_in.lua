-- text_in(field) returns the value of a field, without any quotes around the value.

local function text_in(field)
  if #field > 1 and string.byte(field, 1) == 34 and string.byte(field, -1) == 34 then
    return string.sub(field, 2, -2)
  end
  return field
end
