-- Leaves the one token that says "somebody should look". A lost token costs latency, never a
-- message, so a wake key of another type is passed over.
local function wake(list)
  if redis.pcall('LLEN', list) == 0 then redis.call('LPUSH', list, 1) end
end
