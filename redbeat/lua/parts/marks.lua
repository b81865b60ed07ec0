-- marks(definition, policy, meta) returns two texts by which those of an entry are known again: one
-- of the definition with its policy, one of the meta. A mark is the text itself, for which Redis takes
-- less time than for a digest, or the sha1 of one that is too long to be written once more.
--
-- claim_text(head, definition, policy, meta) returns the field `claim` of an entry: JSON,
-- [<head>,<mark>,<mark>].
--
-- made_of(claim, definition, policy, meta) returns whether a claim was made of these texts, and whether
-- it was of this meta.

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
