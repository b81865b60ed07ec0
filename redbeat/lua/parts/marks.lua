-- marks(definition, policy, meta) returns two texts by which those of an entry are known again: one
-- of the definition with its policy, one of the meta. A mark is the text itself, for which Redis takes
-- less time than for a digest, or the sha1 of one that is too long to be written once more.
--
-- claim_text(id, due, expires, number, definition, policy, meta) returns the field `claim` of an entry,
-- "<id> <due> <expires> <mark> <mark><last>". The last character is one of 94, by the number. Redis keeps
-- the texts of scripts in one table, where it looks for each by some 32 of its characters, counted from
-- the end: claims of entries that differ by a number in their names would all be in one place.
--
-- made_of(claim, definition, policy, meta) returns whether a claim was made of these texts, and whether
-- it was of this meta. It cuts no text out of another, for the same reason.

local LONGEST_MARK = 512

local function mark(text)
  return #text > LONGEST_MARK and sha1hex(text) or text
end

local function marks(definition, policy, meta)
  local whole = policy and policy ~= '' and (definition .. '\n' .. policy) or definition
  return mark(whole), mark(meta or '')
end

local function claim_text(id, due, expires, number, definition, policy, meta)
  local first, second = marks(definition, policy, meta)
  local last = string.char(33 + number % 94)
  return id .. ' ' .. due .. ' ' .. expires .. ' ' .. first .. ' ' .. second .. last
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
  local at = #claim - #second
  local same_meta = stands(second, claim, at)
  local same = same_meta and at == blank + #first + 2 and stands(first, claim, blank + 1)
  return same, same_meta
end
