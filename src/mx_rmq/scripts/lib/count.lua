-- Adds to the topic's lifetime counter and to the one of this minute, which lives for a day.
-- Counters are for people: a broken one must never stop a message, hence pcall.
local function count(counters, topic, event, amount, now_us)
  if amount == 0 then return end
  local field = topic .. ':' .. event
  redis.pcall('HINCRBY', counters, field, amount)
  local minute = counters .. ':' .. math.floor(now_us / 60000000)
  if redis.pcall('HINCRBY', minute, field, amount) == amount then
    redis.pcall('EXPIRE', minute, 86400)
  end
end
