-- decoded(text) returns the JSON object or array in `text` as a table, or nil if `text` contains
-- anything else. If cjson refuses a text that contains half of a surrogate pair, which Python may
-- write, decoded() reads the text without surrogates.
--
-- is_off(enabled) returns whether a decoded value of the field `enabled` is false in Python; a
-- missing value is not.
--
-- equal(one, other, absent) returns whether two decoded values are equal. A field that only one of
-- two objects has is compared with the value `absent`.

local function decoded(text)
  local readable, found = pcall(cjson.decode, text)
  if not readable and type(text) == 'string' and string.find(text, '\\u[dD][89a-fA-F]') then
    readable, found = pcall(cjson.decode, (string.gsub(text, '\\u[dD][89a-fA-F]', '\\uff')))
  end
  return readable and type(found) == 'table' and found or nil
end

local function is_off(enabled)
  return enabled == false or enabled == 0 or enabled == '' or enabled == cjson.null
    or (type(enabled) == 'table' and next(enabled) == nil)
end

local function equal(one, other, absent)
  if type(one) ~= 'table' or type(other) ~= 'table' then
    if one == nil then
      one = absent
    end
    if other == nil then
      other = absent
    end
    return one == other
  end
  for name, value in pairs(one) do
    if not equal(value, other[name], absent) then
      return false
    end
  end
  for name, value in pairs(other) do
    if one[name] == nil and not equal(nil, value, absent) then
      return false
    end
  end
  return true
end
