-- wake_topic: passes on a token that a worker took but cannot use.
-- KEYS     1 wake list
-- ARGV     now_us
-- Returns  1
-- Keeps    I5
-- Uses     wake
local wake_list = KEYS[1]

-- Removes nothing, but lets the next write pass when memory is full; see lib/relieve.lua.
redis.pcall('RPOP', wake_list, 0)
wake(wake_list)
return 1
