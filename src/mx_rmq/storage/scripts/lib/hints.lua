-- Adds `amount` to the count of a topic's stale entries: those in its lists that no claim will deliver.
-- The other entries are pending. `left`: entries in the lists, nil if not known; empty lists have no
-- stale ones. The count is never negative: entries that another program wrote are dropped, but were
-- never counted.
local function note_hints(counters, topic, amount, left)
  if amount == 0 then return end
  local field = topic .. ':stale'
  local stale = left ~= 0 and redis.pcall('HINCRBY', counters, field, amount)
  if left == 0 or (type(stale) == 'number' and stale < 0) then redis.pcall('HDEL', counters, field) end
end
