-- get_next_delay_task: tells the scheduler whether to wait, how long, or to promote now.
-- KEYS     1 delay_tasks zset
-- ARGV     now_us
-- Returns  'NO_TASK' | 'WAITING', wait_ms, id | 'EXPIRED', late_ms, id
-- Keeps    I7; reads only
-- Uses     limits clock
local delay_tasks = KEYS[1]
local now_ms = math.floor(clock() / 1000)

local first = redis.call('ZRANGE', delay_tasks, 0, 0, 'WITHSCORES')
if not first[1] then return { 'NO_TASK' } end
local due_ms = tonumber(first[2])
if due_ms > now_ms then return { 'WAITING', math.min(due_ms - now_ms, most_ms), first[1] } end
return { 'EXPIRED', math.min(now_ms - due_ms, most_ms), first[1] }
