-- Fields of lines are JSON arrays with one ASCII element a line, '[a,\nb,\nc]'. JSON escapes line
-- feeds inside an element, so lines are added and cut without being understood.
--
-- inside(text) returns the lines without brackets, nil if there are none.
-- bracketed(lines) is its inverse.
-- newest_first(text, line, count, replaces) returns the text with a new line at the front, which may
-- be nil; nil if no line stays.
-- after(text, line) returns the lines that follow `line`; all lines if it is not there.
-- without(lines, beginning) returns the lines without the first one that begins so, nil if none
-- stays; and whether there was one.

local function inside(text)
  if not text or string.byte(text) ~= 91 or string.byte(text, -1) ~= 93 then
    return nil
  end
  local lines = string.sub(text, 2, -2)
  if string.sub(lines, -2) == ',\n' then  -- an empty last line, by which no change could say
    lines = string.gsub(lines, '[,\n]+$', '')  -- how far it took the lines in
  end
  return lines ~= '' and lines or nil
end

local function bracketed(lines)
  return lines and '[' .. lines .. ']'
end

local function newest_first(text, line, count, replaces)
  text = inside(text) and text or '[]'
  local first = replaces and (string.find(text, '\n', 1, true) or #text - 1) + 1 or 2
  local stop = first - 1
  for _ = line and 2 or 1, count do
    stop = stop and string.find(text, '\n', stop + 1, true)
  end
  local kept = string.sub(text, first, stop and math.max(stop - 2, 0) or -2)
  if count == 0 or (kept == '' and not line) then
    return nil
  end
  return '[' .. (line or '') .. (line and kept ~= '' and ',\n' or '') .. kept .. ']'
end

local function after(text, line)
  local lines = inside(text)
  if not lines or not line then
    return lines
  end
  local _, stop = string.find(',\n' .. lines .. ',\n', ',\n' .. line .. ',\n', 1, true)
  if not stop then
    return lines
  end
  stop = stop - 2
  return stop < #lines and string.sub(lines, stop + 1) or nil
end

local function without(lines, beginning)
  local start = lines and string.find(',\n' .. lines, ',\n' .. beginning, 1, true)
  if not start then
    return lines, false
  end
  local stop = string.find(lines, ',\n', start, true)
  lines = string.sub(lines, 1, math.max(start - 3, 0)) ..
    (stop and string.sub(lines, start == 1 and stop + 2 or stop) or '')
  return lines ~= '' and lines or nil, true
end
