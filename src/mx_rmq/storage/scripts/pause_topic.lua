-- pause_topic: an operator stops the delivery of a topic; producing goes on.
-- KEYS     1 paused set
-- ARGV     topic; now_us
-- Returns  1 paused | 0 it already was
-- Keeps    I5 I6
local paused = KEYS[1]
local topic = ARGV[1]

-- Removes nothing, but lets the next write pass when memory is full; see lib/relieve.lua.
redis.call('SREM', paused, '')
return redis.call('SADD', paused, topic)
