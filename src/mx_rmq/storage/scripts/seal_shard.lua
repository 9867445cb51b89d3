-- seal_shard: the shard takes no new messages from now on; what is in it goes on as before.
-- KEYS     1 done zset
-- ARGV     now_us
-- Returns  1 sealed now | 0 was sealed before
-- Keeps    I5 I6
local done = KEYS[1]

-- Removes nothing, but lets the next write pass when memory is full; see lib/relieve.lua.
redis.call('ZREM', done, '')
return redis.call('ZADD', done, 'inf', '=sealed')
