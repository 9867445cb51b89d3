-- left_in_shard: what a shard has left, all of one instant; a sealed shard that has nothing left is done.
-- KEYS     1 payload hash   2 delay_tasks zset   3 dlq zset   4 dlq_payload hash
--          5 all_expire_monitor zset
-- ARGV     now_us
-- Returns  fields of live messages, delayed, dead, fields of dead messages, pending and processing
-- Keeps    I4 I6
local payload, delay_tasks, dlq, dlq_payload, monitor = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

return {
  redis.call('HLEN', payload),
  redis.call('ZCARD', delay_tasks),
  redis.call('ZCARD', dlq),
  redis.call('HLEN', dlq_payload),
  redis.call('ZCARD', monitor),
}
