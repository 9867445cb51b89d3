-- Takes an id out of its topic's lists where that costs nothing: at either end. Elsewhere the entry
-- stays, a hint that claim_message will drop; nothing ever searches a long list.
local function drop_hint(prefix, topic, id)
  for _, lane in ipairs({ ':pending:high', ':pending', ':pending:low' }) do
    local list = prefix .. topic .. lane
    if redis.pcall('LINDEX', list, -1) == id then
      redis.call('RPOP', list)
    elseif redis.pcall('LINDEX', list, 0) == id then
      redis.call('LPOP', list)
    end
  end
end
