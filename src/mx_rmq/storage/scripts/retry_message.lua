-- retry_message: the attempt failed, or its handler put the message off; it is delayed with its new body.
-- KEYS     1 payload hash   2 processing hash   3 all_expire_monitor zset   4 delay_tasks zset
--          5 delay_wake list   6 counters hash
-- ARGV     topic, event, history; per delivery: id, token, delay_ms, body; now_us
--          (event: the counter, retried or put_off;
--          history: '' or the prefix of the queue's keys, to count in the history)
-- Returns  per delivery: 1 done | 0 stale | -1 gone
-- Keeps    I1 I2 I3 I4 I5 I6 I7
-- Uses     limits clock count history wake batch held instant leased lease
local payload, processing, monitor = KEYS[1], KEYS[2], KEYS[3]
local delay_tasks, delay_wake, counters = KEYS[4], KEYS[5], KEYS[6]
local topic, event, history = ARGV[1], ARGV[2], ARGV[3]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

redis.call('ZCARD', monitor)
local first = redis.call('ZRANGE', delay_tasks, 0, 0, 'WITHSCORES')
local earliest = tonumber(first[2] or 'inf')
local ids, status, leases = held(payload, processing, 4, 4)
local retried, bodies, dues, soonest = {}, {}, {}, math.huge
for n, id in ipairs(ids) do
  if status[n] == 1 then
    local at = 4 + (n - 1) * 4
    local due = now_ms + tonumber(ARGV[at + 2])
    local leased, lane, expires = kept(leases[n])
    local m = #retried
    retried[m + 1] = id
    dues[m * 2 + 1], dues[m * 2 + 2] = due, id
    bodies[m * 6 + 1], bodies[m * 6 + 2] = id, ARGV[at + 3]
    bodies[m * 6 + 3], bodies[m * 6 + 4] = id .. ':queue', topic
    bodies[m * 6 + 5], bodies[m * 6 + 6] = id .. ':keep', leased .. ' ' .. lane .. ' ' .. expires
    soonest = math.min(soonest, due)
  end
end
if #retried > 0 then
  redis.call('HDEL', processing, unpack(retried))
  redis.call('ZREM', monitor, unpack(retried))
  redis.call('HSET', payload, unpack(bodies))
  redis.call('ZADD', delay_tasks, unpack(dues))
  if soonest < earliest then wake(delay_wake) end
  count(counters, topic, event, #retried)
  note(history, topic, now_us, event == 'retried' and 'r' or 'o', #retried)
end
return status
