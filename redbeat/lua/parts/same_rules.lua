-- same_rules(claim, definition, policy, meta) returns whether the decision of a claim is still
-- valid: whether the meta, and all fields that decide when the entry runs, are unchanged since the
-- claim. For a long JSON text, the claim contains only a digest. A text with another digest counts
-- as changed, unless note_edit() has compared the fields of both texts.
--
-- note_edit(entry, claim, definition, policy, meta, new_definition, new_policy) must be called when
-- a claimed entry is edited. If the claim has only a digest of the JSON, and the edit changes no
-- field that decides when the entry runs, note_edit() replaces the digest by an edit mark. An edit
-- mark is the character = and the digest of the new JSON. The function made_of() does not accept an
-- edit mark, so the completion still detects the edit.
--
-- equal_rules(old_definition, old_policy, definition, policy) returns whether the old and the new
-- definition and policy lead to the same decisions. If both the definition and the policy contain a
-- field, the field of the policy has priority.
--
-- same_rules() and equal_rules() need the functions sha1hex, made_of, decoded and equal.

-- The fields that do not influence which occurrence runs or when an occurrence runs.
local UNDECISIVE = {
  'name', 'task', 'args', 'kwargs', 'options', 'enabled', 'pause', 'delivery', 'on_finish',
  'overlap', 'overlap_timeout', 'pause_after_failures', 'expect_within', 'description',
  'managed_by'}

-- Returns the fields that decide which occurrence runs and when, or nil if the definition or the
-- policy is not readable.
local function rules_of(definition, policy)
  if type(definition) ~= 'table' or type(policy) ~= 'table' then
    return nil
  end
  local rules = {}
  for _, fields in ipairs({definition, policy}) do
    for name, value in pairs(fields) do
      if value ~= cjson.null then
        rules[name] = value
      end
    end
  end
  for _, name in ipairs(UNDECISIVE) do
    rules[name] = nil
  end
  return rules
end

local function decoded_policy(policy)
  return decoded(policy and policy ~= '' and policy or '{}')
end

local function equal_rules(old_definition, old_policy, definition, policy)
  local before = rules_of(decoded(old_definition), decoded_policy(old_policy))
  local now = rules_of(decoded(definition), decoded_policy(policy))
  return before ~= nil and now ~= nil and equal(before, now, false)
end

local function edit_mark(definition, policy)
  return '"=' .. sha1hex(joined(definition, policy)) .. '"'
end

local function same_rules(claim, definition, policy, meta)
  local same, same_meta = made_of(claim, definition, policy, meta)
  if same or not same_meta then
    return same
  end
  if is_at(edit_mark(definition, policy), claim, first_mark_at(claim)) then
    return true
  end
  local parts = decoded(claim) or {}
  local before = rules_of(parts[2], type(parts[4]) ~= 'nil' and parts[3] or {})
  local now = rules_of(decoded(definition), decoded_policy(policy))
  return before ~= nil and now ~= nil and equal(before, now, false)
end

local function note_edit(entry, claim, definition, policy, meta, new_definition, new_policy)
  local begin = first_mark_at(claim)
  if string.sub(claim, begin, begin) == '"'
    and same_rules(claim, definition, policy, meta)
    and equal_rules(definition, policy, new_definition, new_policy) then
    local _, of_meta = marks(definition, policy, meta)
    local mark_of_edit = edit_mark(new_definition, new_policy)
    redis.call('HSET', entry, 'claim',
      string.sub(claim, 1, begin - 1) .. mark_of_edit .. ',' .. of_meta .. ']')
  end
end
