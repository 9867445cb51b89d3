-- Removes an id from its topic's lists where that costs nothing: at either end. Elsewhere the entry
-- stays, and claim_message drops it later; no script ever searches a long list.
-- `listed`: 1 if the message was pending until now, else 0.
-- Returns how many more stale entries there are; below 0 if entries of the id's earlier life were removed.
local function drop_hint(prefix, topic, id, listed)
  local stale = listed
  for _, lane in ipairs(lanes) do
    local list = prefix .. topic .. suffixes[lane]
    if redis.pcall('LINDEX', list, -1) == id then
      redis.call('RPOP', list)
      stale = stale - 1
    elseif redis.pcall('LINDEX', list, 0) == id then
      redis.call('LPOP', list)
      stale = stale - 1
    end
  end
  return stale
end
