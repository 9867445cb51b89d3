-- register_worker: registers a live worker, and removes those that have been silent for silence_ms.
-- KEYS     1 workers hash   2 workers_seen zset   3 workers_connections hash
-- ARGV     worker, facts, connection, silence_ms; now_us
--          (facts: '' when the worker leaves; connection: '' if it is not known; with facts '', a worker
--          that has registered by another connection since is kept)
-- Returns  how many workers were forgotten, how many are registered
-- Keeps    I7 I8
-- Uses     clock relieve
local workers, workers_seen, workers_connections = KEYS[1], KEYS[2], KEYS[3]
local worker, facts, connection, silence_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now_ms = math.floor(clock() / 1000)

redis.call('HLEN', workers)
local said = redis.call('HGET', workers_connections, worker)
local gone = redis.call('ZRANGE', workers_seen, '-inf', now_ms - silence_ms, 'BYSCORE', 'LIMIT', 0, 100)
if facts == '' and (connection == '' or connection == said) then gone[#gone + 1] = worker end
if #gone > 0 then
  redis.call('HDEL', workers, unpack(gone))
  redis.call('HDEL', workers_connections, unpack(gone))
  redis.call('ZREM', workers_seen, unpack(gone))
end
if facts ~= '' then
  relieve(workers)
  redis.call('HSET', workers, worker, facts)
  redis.call('ZADD', workers_seen, now_ms, worker)
  if connection == '' then
    redis.call('HDEL', workers_connections, worker)
  else
    redis.call('HSET', workers_connections, worker, connection)
  end
end
return { #gone, redis.call('ZCARD', workers_seen) }
