-- set_layout: writes which shards the queue has, if the caller knows what is written there now.
-- A queue of several shards stores no message under its own tag, so that tag is sealed with the first
-- layout; a queue that has messages or workers there already is one shard, and stays it.
-- KEYS     1 layout string   2 done zset   3 topics set   4 workers hash
-- ARGV     known, text, seal; now_us
--          (known: '' or the text that the caller read; seal: 1 if this tag is no shard of the layout)
-- Returns  1 written | 0 another text is there | -1 in use as one shard, then the text that is there
-- Keeps    I5 I6
local layout, done, topics, workers = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known, text, seal = ARGV[1], ARGV[2], ARGV[3]

local stored = redis.call('GET', layout) or ''
redis.call('ZCARD', done)
local is_used = redis.call('HLEN', workers) > 0 or redis.call('TYPE', topics).ok ~= 'none'
if stored == text then return { 1, stored } end
if stored ~= known then return { 0, stored } end
if seal == '1' and is_used then return { -1, stored } end
-- Removes nothing, but lets the next writes pass when memory is full; see lib/relieve.lua.
redis.call('ZREM', done, '')
if seal == '1' then redis.call('ZADD', done, 'inf', '=sealed') end
redis.call('SET', layout, text)
return { 1, text }
