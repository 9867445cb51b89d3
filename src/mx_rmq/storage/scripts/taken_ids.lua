-- taken_ids: whether ids are taken on a sealed shard, where no new message can take one any more.
-- KEYS     1 payload hash   2 dlq zset   3 done zset
-- ARGV     per message: id; now_us
-- Returns  per message: 1 free | 0 live | -1 dead | -2 done and remembered
-- Keeps    I4 I6 I7 I8
-- Uses     limits clock batch
local payload, dlq, done = KEYS[1], KEYS[2], KEYS[3]
local now_ms = math.floor(clock() / 1000)

local ids, status = batch(1, 1), {}
if #ids == 0 then return status end
local bodies = redis.call('HMGET', payload, unpack(ids))
local deaths = redis.call('ZMSCORE', dlq, unpack(ids))
local memories = redis.call('ZMSCORE', done, unpack(ids))
for n = 1, #ids do
  local until_ms = tonumber(memories[n] or 0)
  status[n] = bodies[n] and 0 or deaths[n] and -1 or until_ms > now_ms and -2 or 1
end
return status
