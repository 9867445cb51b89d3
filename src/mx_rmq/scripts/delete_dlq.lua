-- delete_dlq: an operator deletes dead messages for good.
-- KEYS     1 dlq zset   2 dlq_payload hash   3 counters hash
-- ARGV     per message: id; now_us
-- Returns  how many were deleted
-- Keeps    I1 I5 I6 I8
-- Uses     clock count batch bury
local dlq, dlq_payload, counters = KEYS[1], KEYS[2], KEYS[3]
local ids = batch(1, 1)

redis.call('ZCARD', dlq)
redis.call('HLEN', dlq_payload)
return bury(dlq, dlq_payload, counters, ids, clock())
