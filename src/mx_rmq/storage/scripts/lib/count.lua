-- Adds to a counter of the topic, which counts since the queue began.
-- Counters are for people: a broken one must never stop a message, hence pcall.
local function count(counters, topic, event, amount)
  if amount ~= 0 then redis.pcall('HINCRBY', counters, topic .. ':' .. event, amount) end
end
