-- register_worker: registers a live worker, and removes those that have been silent for silence_ms.
-- KEYS     1 workers hash   2 workers_seen zset
-- ARGV     worker, facts, silence_ms; now_us
--          (facts: '' when the worker leaves)
-- Returns  how many workers were forgotten
-- Keeps    I7 I8
-- Uses     clock relieve
local workers, workers_seen = KEYS[1], KEYS[2]
local worker, facts, silence_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now_ms = math.floor(clock() / 1000)

redis.call('HLEN', workers)
local gone = redis.call('ZRANGE', workers_seen, '-inf', now_ms - silence_ms, 'BYSCORE', 'LIMIT', 0, 100)
if facts == '' then gone[#gone + 1] = worker end
if #gone > 0 then
  redis.call('HDEL', workers, unpack(gone))
  redis.call('ZREM', workers_seen, unpack(gone))
end
if facts ~= '' then
  relieve(workers)
  redis.call('HSET', workers, worker, facts)
  redis.call('ZADD', workers_seen, now_ms, worker)
end
return #gone
