-- delete_dlq: an operator deletes dead messages for good.
-- KEYS     1 dlq zset   2 dlq_payload hash   3 counters hash
-- ARGV     per message: id, died_ms; now_us
--          (died_ms: '' or the time of death that the caller read; one that died again since is kept)
-- Returns  how many were deleted
-- Keeps    I1 I5 I6 I8
-- Uses     limits count batch bury
local dlq, dlq_payload, counters = KEYS[1], KEYS[2], KEYS[3]

redis.call('HLEN', dlq_payload)
local ids = {}
for n, id in ipairs(batch(1, 2)) do
  local at = 1 + (n - 1) * 2
  local died, score = ARGV[at + 1], redis.call('ZSCORE', dlq, id)
  if died == '' or (score and tonumber(died) == tonumber(score)) then ids[#ids + 1] = id end
end
return bury(dlq, dlq_payload, counters, ids)
