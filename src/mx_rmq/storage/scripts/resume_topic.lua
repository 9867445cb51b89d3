-- resume_topic: an operator resumes the delivery of a paused topic; a worker is woken.
-- KEYS     1 paused set   2 wake list
-- ARGV     topic; now_us
-- Returns  1 resumed | 0 it was not paused
-- Keeps    I5 I6
-- Uses     wake
local paused, wake_list = KEYS[1], KEYS[2]
local topic = ARGV[1]

local resumed = redis.call('SREM', paused, topic)
if resumed == 1 then wake(wake_list) end
return resumed
