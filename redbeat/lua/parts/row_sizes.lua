-- row_sizes(count) returns a function that packs the sizes of `count` strings as big-endian
-- integers of four bytes.

-- A fake Redis server in tests may lack the library `struct`. Without the library `struct`, the
-- returned function encodes the sizes itself.
local function row_sizes(count)
  local format = '>' .. string.rep('I4', count)
  return function(...)
    if struct then
      return struct.pack(format, ...)
    end
    local texts = {}
    for i, size in ipairs({...}) do
      texts[i] = string.char(
        math.floor(size / 16777216), math.floor(size / 65536) % 256, math.floor(size / 256) % 256,
        size % 256)
    end
    return table.concat(texts)
  end
end
