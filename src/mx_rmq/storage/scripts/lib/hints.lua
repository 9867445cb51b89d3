-- Counts the entries of a topic's lists that no claim will deliver: `amount` more, or fewer. What is
-- pending is the rest. In empty lists there are none (`left`: entries in them, nil if not known), and
-- never fewer than none: entries that another program wrote are dropped without having been counted.
local function note_hints(counters, topic, amount, left)
  if amount == 0 then return end
  local field = topic .. ':stale'
  local stale = left ~= 0 and redis.pcall('HINCRBY', counters, field, amount)
  if left == 0 or (type(stale) == 'number' and stale < 0) then redis.pcall('HDEL', counters, field) end
end
