-- marks(definition, policy, meta) returns two texts by which those of an entry are known again: one
-- of the definition with its policy, one of the meta. A mark is the text itself, for which Redis takes
-- less time than for a digest, or the sha1 of one that is too long to be written once more.
--
-- made_of(claim, definition, policy, meta) returns whether a claim, "<id> <due> <expires> <mark>
-- <mark>", was made of these texts, and whether it was of this meta. It cuts no text out of another:
-- Redis keeps each text of a script in one table, where it takes long to tell apart those of entries.

local LONGEST_MARK = 512

local function mark(text)
  return #text > LONGEST_MARK and sha1hex(text) or text
end

local function marks(definition, policy, meta)
  local whole = policy and policy ~= '' and (definition .. '\n' .. policy) or definition
  return mark(whole), mark(meta or '')
end

local function stands(text, whole, at)
  return at > 0 and string.find(whole, text, at, true) == at
end

local function made_of(claim, definition, policy, meta)
  local first, second = marks(definition, policy, meta)
  local blank = 0
  for _ = 1, 3 do
    blank = string.find(claim, ' ', blank + 1, true) or #claim
  end
  local at = #claim - #second + 1
  local same_meta = stands(second, claim, at)
  local same = same_meta and at == blank + #first + 2 and stands(first, claim, blank + 1)
  return same, same_meta
end
