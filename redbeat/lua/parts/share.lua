-- own_share() returns a function that tells whether a key belongs to this beat's share, nil if all
-- do. A beat's number is the rank of its token among the beats without a lock that were seen in the
-- last ten seconds.
--
-- note_beat() notes that this beat is there; `is_new` says whether it was not there before.

local is_new = false

local function note_beat()
  local added = side('ZADD', 'beats', now_text, lock and token .. ' lock' or token)
  if added then
    is_new = is_new or added == 1
    side('EXPIRE', 'beats', 60)
    side('ZREMRANGEBYSCORE', 'beats', '-inf', now - 60)
  end
end

local function beats_seen(seconds)
  local seen = {}
  for _, beat in ipairs(side('ZRANGEBYSCORE', 'beats', now - seconds, now + 10) or {}) do
    if string.sub(beat, -5) ~= ' lock' then
      seen[#seen + 1] = beat
    end
  end
  return seen
end

local function own_share()
  note_beat()
  local seen, rank = beats_seen(10), nil
  table.sort(seen)
  for i, beat in ipairs(seen) do
    rank = beat == token and i - 1 or rank
  end
  if #seen < 2 or not rank then
    return nil
  end
  return function(key)
    local sum = 0
    for i = #prefix + 1, #key do
      sum = (sum * 31 + string.byte(key, i)) % 65521
    end
    return sum % #seen == rank
  end
end
