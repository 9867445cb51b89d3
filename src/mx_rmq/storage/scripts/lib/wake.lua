-- Pushes the one token that tells a waiting worker to look. A lost token costs latency, never a
-- message, so a wake key of another type is ignored.
local function wake(list)
  if redis.pcall('LLEN', list) == 0 then redis.call('LPUSH', list, '1') end
end
