-- row_reader(count) returns a function read(sizes, at, packed, start) that reads a row of `count`
-- strings. The row begins at index `start` of `packed`. The sizes of the strings begin at index
-- `at` of `sizes`, as big-endian integers of four bytes. The function read() returns a list of the
-- strings, and the index at which the next row begins.

-- A fake Redis server in tests may lack the library `struct`. Without the library `struct`, read()
-- decodes the sizes itself.
local function row_reader(count)
  local format = '>' .. string.rep('I4', count)
  return function(sizes, at, packed, start)
    local fields = struct and {struct.unpack(format, sizes, at)} or {}
    for i = 1, count do
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
end
