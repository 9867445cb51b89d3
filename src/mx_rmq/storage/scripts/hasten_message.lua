-- hasten_message: an operator makes delayed messages due now; the scheduler then moves them to their
-- lanes. Priority and expiry stay as they are.
-- KEYS     1 payload hash   2 delay_tasks zset   3 dlq zset   4 delay_wake list
-- ARGV     per message: id; now_us
-- Returns  per message: 1 due now | 0 due already | -1 gone | -2 dead | -3 not delayed
-- Keeps    I1 I2 I5 I6 I7 I8
-- Uses     limits clock wake batch relieve
local payload, delay_tasks, dlq, delay_wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now_ms = math.floor(clock() / 1000)

redis.call('ZCARD', dlq)
local first = redis.call('ZRANGE', delay_tasks, 0, 0, 'WITHSCORES')
local earliest = tonumber(first[2] or 'inf')
local ids, status, dues, seen = batch(1, 1), {}, {}, {}
for n, id in ipairs(ids) do
  local due_ms = tonumber(redis.call('ZSCORE', delay_tasks, id) or '')
  if redis.call('HEXISTS', payload, id) == 0 then
    status[n] = redis.call('ZSCORE', dlq, id) and -2 or -1
  elseif not due_ms then
    status[n] = -3
  elseif due_ms <= now_ms or seen[id] then
    status[n] = 0
  else
    status[n], seen[id] = 1, true
    dues[#dues + 1] = now_ms
    dues[#dues + 1] = id
  end
end

if #dues > 0 then
  relieve(payload)
  redis.call('ZADD', delay_tasks, unpack(dues))
  if now_ms < earliest then wake(delay_wake) end
end
return status
