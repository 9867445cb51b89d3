-- cancel_message: an operator withdraws pending or delayed messages. The list entry of a pending one
-- may stay behind; claim_message drops it later.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 delay_tasks zset   4 dlq zset
--          5 counters hash
-- ARGV     prefix; per message: id; now_us
-- Returns  per message: 1 cancelled | 0 running | -1 gone | -2 dead
--          | -3 its topic is missing or a key of it has the wrong type
-- Keeps    I1 I2 I3 I5 I6 I8
-- Uses     limits lanes count hints batch drop_hint
local payload, monitor, delay_tasks, dlq, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix = ARGV[1]

redis.call('ZCARD', monitor)
redis.call('ZCARD', delay_tasks)
local ids, status, topics = batch(2, 1), {}, {}
for n, id in ipairs(ids) do
  local topic = redis.call('HGET', payload, id .. ':queue')
  local lease = topic and redis.pcall('HGET', prefix .. topic .. ':processing', id)
  if redis.call('HEXISTS', payload, id) == 0 then
    status[n] = redis.call('ZSCORE', dlq, id) and -2 or -1
  elseif not topic or type(lease) == 'table' then
    status[n] = -3
  elseif lease then
    status[n] = 0
  else
    status[n] = topics[id] and -1 or 1
    topics[id] = topic
  end
end

local cancelled, stale = {}, {}
for n, id in ipairs(ids) do
  if status[n] == 1 then
    local topic = topics[id]
    redis.call('HDEL', payload, id, id .. ':queue', id .. ':keep')
    local listed = redis.call('ZREM', monitor, id)  -- 1 for a pending one
    redis.call('ZREM', delay_tasks, id)
    stale[topic] = (stale[topic] or 0) + drop_hint(prefix, topic, id, listed)
    cancelled[topic] = (cancelled[topic] or 0) + 1
  end
end
for topic, amount in pairs(cancelled) do
  count(counters, topic, 'cancelled', amount)
  note_hints(counters, topic, stale[topic])
end
return status
