-- ten_fields(sizes, at, packed, start) returns the ten texts of a row, which begin at `start` of
-- `packed`, and where the next row begins. Their sizes are at `at` of `sizes`: four bytes each,
-- highest first, in bytes.

-- A fake server may lack the library for sizes of four bytes.
local TEN = '>' .. string.rep('I4', 10)

local function ten_fields(sizes, at, packed, start)
  local fields = struct and {struct.unpack(TEN, sizes, at)} or {}
  for i = 1, 10 do
    local size = fields[i]
    if not size then
      local a, b, c, d = string.byte(sizes, at + 4 * i - 4, at + 4 * i - 1)
      size = ((a * 256 + b) * 256 + c) * 256 + d
    end
    fields[i] = size > 0 and string.sub(packed, start, start + size - 1) or ''
    start = start + size
  end
  return fields, start
end
