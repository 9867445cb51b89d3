-- complete_message: the handler succeeded, so the message is finished and forgotten.
-- KEYS     1 payload hash   2 processing hash   3 all_expire_monitor zset   4 done zset
--          5 counters hash
-- ARGV     topic; per delivery: id, token, dedup_ms; now_us
--          (dedup_ms: how long the id stays taken, 0 for not at all)
-- Returns  per delivery: 1 done | 0 stale | -1 gone
-- Keeps    I1 I2 I3 I4 I5 I6
-- Uses     limits clock count batch held
local payload, processing, monitor, done, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local topic = ARGV[1]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

redis.call('ZCARD', monitor)
redis.call('ZCARD', done)
local ids, status = held(payload, processing, 2, 3)
local finished, fields, memories, m = {}, {}, {}, 0
for n = 1, #ids do
  local id = ids[n]
  if status[n] == 1 then
    finished[m + 1] = id
    fields[m * 3 + 1], fields[m * 3 + 2], fields[m * 3 + 3] = id, id .. ':queue', id .. ':keep'
    m = m + 1
    local dedup_ms = tonumber(ARGV[2 + (n - 1) * 3 + 2])
    if dedup_ms > 0 then
      memories[#memories + 1] = now_ms + dedup_ms
      memories[#memories + 1] = id
    end
  end
end
if #finished > 0 then
  redis.call('HDEL', processing, unpack(finished))
  redis.call('ZREM', monitor, unpack(finished))
  redis.call('HDEL', payload, unpack(fields))
  if #memories > 0 then
    redis.call('ZADD', done, unpack(memories))
    -- For each id added, up to two expired ones are removed, so the set never holds many expired ids.
    local forgotten = redis.call('ZRANGE', done, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, #memories)
    if #forgotten > 0 then redis.call('ZREM', done, unpack(forgotten)) end
  end
  count(counters, topic, 'completed', #finished)
end
return status
