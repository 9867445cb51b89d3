-- replay_dlq: an operator makes dead messages pending again, at the tail of their lane.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 dlq zset   4 dlq_payload hash
--          5 counters hash
-- ARGV     prefix; per message: id, died_ms, lane, ttl_ms, body; now_us
--          (died_ms: '' or the time of death that the caller read; body: '' keeps the stored bytes)
-- Returns  per message: 1 replayed | 0 it died again since | -1 gone | -2 already live
--          | -3 its topic is missing or a key of it has the wrong type
-- Keeps    I1 I2 I5 I6 I7 I8
-- Uses     limits lanes clock count wake batch
local payload, monitor, dlq, dlq_payload, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix = ARGV[1]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

redis.call('ZCARD', monitor)
redis.call('HLEN', payload)
local ids, status, moves, seen = batch(2, 5), {}, {}, {}
for n, id in ipairs(ids) do
  local at = 2 + (n - 1) * 5
  local died, lane, ttl, body = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local score = redis.call('ZSCORE', dlq, id)
  local stored = redis.call('HMGET', dlq_payload, id, id .. ':queue')
  local topic = stored[2]
  local list = topic and prefix .. topic .. (suffixes[lane] or suffixes.normal)
  if not score or not stored[1] or seen[id] then
    status[n] = -1
  elseif died ~= '' and tonumber(died) ~= tonumber(score) then
    status[n] = 0
  elseif redis.call('HEXISTS', payload, id) == 1 then
    status[n] = -2
  elseif not list or type(redis.pcall('LLEN', list)) ~= 'number' then
    status[n] = -3
  else
    status[n], seen[id] = 1, true
    moves[#moves + 1] = {
      id = id, topic = topic, list = list, body = body == '' and stored[1] or body,
      expires = ttl == 'inf' and 'inf' or now_ms + tonumber(ttl),
    }
  end
end

for _, move in ipairs(moves) do
  redis.call('ZREM', dlq, move.id)
  redis.call('HDEL', dlq_payload, move.id, move.id .. ':queue', move.id .. ':error')
  redis.call('HSET', payload, move.id, move.body, move.id .. ':queue', move.topic)
  redis.call('ZADD', monitor, move.expires, move.id)
  redis.call('LPUSH', move.list, move.id)
  wake(prefix .. move.topic .. ':wake')
  count(counters, move.topic, 'replayed', 1)
end
return status
