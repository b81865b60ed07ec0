-- marks(definition, policy, meta) returns two marks, by which a completion detects whether the
-- entry changed after the claim. The first mark of a claim is for the definition and the policy,
-- the second mark for the meta. The mark of a short JSON text is the text itself, because a digest
-- would take more time; the mark of a long JSON text is its SHA-1, to save memory.
--
-- claim_text(head, definition, policy, meta) returns the value of the field `claim` of an entry as
-- JSON: [<head>,<mark>,<mark>].
--
-- made_of(claim, definition, policy, meta) returns two booleans: the first is true if the claim was
-- made for this definition, policy and meta, the second if the claim was made for this meta.
--
-- first_mark_at(claim) returns the position of the first mark in a claim.

local LONGEST_MARK = 512

local function mark(text)
  if #text > LONGEST_MARK then
    return '"' .. sha1hex(text) .. '"'
  end
  return text ~= '' and text or '""'
end

local function joined(definition, policy)
  return policy and policy ~= '' and (definition .. ',' .. policy) or definition
end

local function marks(definition, policy, meta)
  return mark(joined(definition, policy)), mark(meta or '')
end

local function claim_text(head, definition, policy, meta)
  local first, second = marks(definition, policy, meta)
  return '["' .. head .. '",' .. first .. ',' .. second .. ']'
end

local function first_mark_at(claim)
  local _, comma = string.find(claim, '",', 1, true)
  return (comma or #claim) + 1
end

local function is_at(text, whole, at)
  return at > 0 and string.sub(whole, at, at + #text - 1) == text
end

local function made_of(claim, definition, policy, meta)
  local first, second = marks(definition, policy, meta)
  local begin = first_mark_at(claim)
  local at = begin + #first + 1
  if is_at(first, claim, begin) and is_at(second, claim, at)
    and string.find(claim, '^%]%s*$', at + #second) then
    return true, true
  end
  return false, is_at(second, claim, (string.find(claim, '%]%s*$') or 0) - #second)
end
