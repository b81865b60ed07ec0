-- marks(definition, policy, meta) returns two texts by which those of an entry are known again: one
-- of the definition with its policy, one of the meta. A mark is the text itself, for which Redis takes
-- less time than for a digest, or the sha1 of one that is too long to be written once more.
--
-- claim_text(id, due, expires, number, definition, policy, meta) returns the field `claim` of an entry:
-- JSON, ["<id> <due> <expires>",<mark>,<mark>], and after it blanks that depend on the number. Redis
-- keeps the texts of scripts in one table, where it looks for each by its length and some 32 of its
-- characters, counted from the end: without the blanks, claims of entries that differ by a number in
-- their names would all be in one place.
--
-- made_of(claim, definition, policy, meta) returns whether a claim was made of these texts, and whether
-- it was of this meta. It cuts no text out of another, for the same reason.

local LONGEST_MARK = 512
local LAST = {'', ' ', '\t', '\n', '\r'}

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

local function claim_text(id, due, expires, number, definition, policy, meta)
  local first, second = marks(definition, policy, meta)
  local blanks = string.rep(' ', math.floor(number / 5) % 20) .. LAST[number % 5 + 1]
  return '["' .. id .. ' ' .. due .. ' ' .. expires .. '",' .. first .. ',' .. second .. ']' .. blanks
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
