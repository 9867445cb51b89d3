-- delete_dlq: an operator deletes dead messages for good.
-- KEYS     1 dlq zset   2 dlq_payload hash   3 dlq_groups hash   4 counters hash
-- ARGV     per message: id, died_ms; now_us
--          (died_ms: '' or the time of death that the caller read; one that died again since is kept)
-- Returns  how many were deleted
-- Keeps    I1 I5 I6 I8
-- Uses     limits count batch leave_groups bury
local dlq, dlq_payload, dlq_groups, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

redis.call('HLEN', dlq_payload)
local asked, ids, seen = batch(1, 2), {}, {}
local scores = #asked > 0 and redis.call('ZMSCORE', dlq, unpack(asked)) or {}
for n, id in ipairs(asked) do
  local at = 1 + (n - 1) * 2
  local died, score = ARGV[at + 1], scores[n]
  if score and not seen[id] and (died == '' or tonumber(died) == tonumber(score)) then
    ids[#ids + 1], seen[id] = id, true
  end
end
return bury(dlq, dlq_payload, dlq_groups, counters, ids)
