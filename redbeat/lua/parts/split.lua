-- split(sizes, packed) returns the strings that are joined in `packed`. `sizes` has the sizes of
-- the strings in bytes, separated by spaces.

local function split(sizes, packed)
  local fields, start = {}, 1
  for size in string.gmatch(sizes, '%d+') do
    fields[#fields + 1] = string.sub(packed, start, start + size - 1)
    start = start + size
  end
  return fields
end
