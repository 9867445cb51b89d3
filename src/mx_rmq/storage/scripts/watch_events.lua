-- watch_events: notes for a while what a program wants to hear of; workers look for it, and publish that.
-- KEYS     1 tails zset
-- ARGV     want, for_ms; now_us
-- Returns  1 noted | 0 not: there are too many others
-- Keeps    I7 I8
-- Uses     clock
local tails = KEYS[1]
local want, for_ms = ARGV[1], tonumber(ARGV[2])
local now_ms = math.floor(clock() / 1000)
local most = 16

redis.call('ZREM', tails, want) -- even of nothing: with maxmemory reached, a script may write after a removal
local over = redis.call('ZRANGE', tails, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, 100)
if #over > 0 then redis.call('ZREM', tails, unpack(over)) end
if redis.call('ZCARD', tails) >= most then return 0 end
redis.call('ZADD', tails, now_ms + for_ms, want)
redis.call('EXPIRE', tails, math.ceil(for_ms / 1000))
return 1
