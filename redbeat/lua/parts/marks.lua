-- marks(definition, policy, meta) returns two texts by which those of an entry are known again: one
-- of the definition with its policy, one of the meta. A mark is the text itself, for which Redis takes
-- less time than for a digest, or the sha1 of one that is too long to be written once more.
--
-- claim_text(head, definition, policy, meta) returns the field `claim` of an entry: JSON,
-- [<head>,<mark>,<mark>].
--
-- made_of(claim, definition, policy, meta) returns whether a claim was made of these texts, and whether
-- it was of this meta.
--
-- same_rules(claim, definition, policy, meta) returns whether what decides when the entry runs is as it
-- was when the claim was made: schedule, policy but for a pause, history. Of a long text that changed
-- nobody can tell.

local LONGEST_MARK = 512

local function mark(text)
  if #text > LONGEST_MARK then
    return '"' .. sha1hex(text) .. '"'
  end
  return text ~= '' and text or '""'
end

local function marks(definition, policy, meta)
  local whole = policy and policy ~= '' and (definition .. ',' .. policy) or definition
  return mark(whole), mark(meta or '')
end

local function claim_text(head, definition, policy, meta)
  local first, second = marks(definition, policy, meta)
  return '["' .. head .. '",' .. first .. ',' .. second .. ']'
end

local function stands(text, whole, at)
  return at > 0 and string.find(whole, text, at, true) == at
end

local function made_of(claim, definition, policy, meta)
  local first, second = marks(definition, policy, meta)
  local _, comma = string.find(claim, '",', 1, true)
  comma = comma or #claim
  local at = comma + #first + 2
  if stands(first, claim, comma + 1) and stands(second, claim, at)
    and string.find(claim, '^%]%s*$', at + #second) then
    return true, true
  end
  return false, stands(second, claim, (string.find(claim, '%]%s*$') or 0) - #second)
end

local function decoded(text)
  local readable, found = pcall(cjson.decode, text)
  return readable and type(found) == 'table' and found or nil
end

local function alike(one, other)
  if type(one) ~= 'table' or type(other) ~= 'table' then
    return one == other
  end
  for key, value in pairs(one) do
    if not alike(value, other[key]) then
      return false
    end
  end
  for key in pairs(other) do
    if one[key] == nil then
      return false
    end
  end
  return true
end

local function same_rules(claim, definition, policy, meta)
  local same, same_meta = made_of(claim, definition, policy, meta)
  if same or not same_meta then
    return same
  end
  local before, now = decoded(claim), decoded(definition)
  local ruled = decoded(policy and policy ~= '' and policy or '{}')
  if not before or not now or not ruled or type(before[2]) ~= 'table' then
    return false
  end
  local rules = type(before[4]) ~= 'nil' and before[3] or {}
  if type(rules) ~= 'table' then
    return false
  end
  rules.pause, ruled.pause = nil, nil
  return alike(before[2].schedule, now.schedule) and alike(rules, ruled)
end
