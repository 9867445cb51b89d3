-- trim_dlq: retention; deletes the oldest dead messages, by age, by count or both.
-- KEYS     1 dlq zset   2 dlq_payload hash   3 dlq_groups hash   4 counters hash
-- ARGV     max_age_ms, max_count, limit; now_us
--          ('inf' for no bound)
-- Returns  how many were deleted; ask again while it equals the limit (most_messages at most)
-- Keeps    I1 I6 I7 I8
-- Uses     limits clock digits bounded count leave_groups bury
local dlq, dlq_payload, dlq_groups, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local max_age_ms, max_count, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), bounded(ARGV[3])
local now_us = clock()

local excess = redis.call('ZCARD', dlq) - max_count
redis.call('HLEN', dlq_payload)
local ids = {}
if excess > 0 and limit > 0 then ids = redis.call('ZRANGE', dlq, 0, math.min(excess, limit) - 1) end
if #ids < limit and max_age_ms < math.huge then
  local oldest = digits(math.floor(now_us / 1000) - max_age_ms)
  local old = redis.call('ZRANGE', dlq, '-inf', '(' .. oldest, 'BYSCORE', 'LIMIT', 0, limit)
  -- Both lists start at the oldest, so the longer one contains the shorter.
  if #old > #ids then ids = old end
end
return bury(dlq, dlq_payload, dlq_groups, counters, ids)
