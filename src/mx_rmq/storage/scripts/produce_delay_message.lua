-- produce_delay_message: stores messages that become pending after their delay.
-- KEYS     1 payload hash   2 delay_tasks zset   3 dlq zset   4 done zset
--          5 delay_wake list   6 topics set   7 counters hash   8 call string
-- ARGV     topic, call, max_bytes, history; per message: id, lane, ttl_ms, delay_ms, body; now_us
--          (the lifetime ttl_ms starts when the delay ends;
--          history: '' or the prefix of the queue's keys, to count in the history)
-- Returns  per message: 1 stored | 0 already live | -1 already dead | -2 done and remembered
-- Keeps    I1 I2 I5 I6 I7 I8
-- Uses     limits lanes clock digits count history wake batch admit calls
local payload, delay_tasks, dlq, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delay_wake, topics, counters, call_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local topic, call, max_bytes, history = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

local answer = answer_of(call_key, call)
if answer then return answer end

local first = redis.call('ZRANGE', delay_tasks, 0, 0, 'WITHSCORES')
local earliest = tonumber(first[2] or 'inf')
local ids, status, codes = admit(payload, dlq, done, 5, 5, max_bytes, now_ms)

local bodies, dues, stored, soonest = {}, {}, 0, math.huge
for n, id in ipairs(ids) do
  local at = 5 + (n - 1) * 5
  local lane, ttl = ARGV[at + 1], ARGV[at + 2]
  if status[n] == 1 then
    local due = now_ms + tonumber(ARGV[at + 3])
    local expires = ttl == 'inf' and 'inf' or digits(due + tonumber(ttl))
    soonest = math.min(soonest, due)
    dues[stored * 2 + 1], dues[stored * 2 + 2] = due, id
    bodies[stored * 6 + 1], bodies[stored * 6 + 2] = id, ARGV[at + 4]
    bodies[stored * 6 + 3], bodies[stored * 6 + 4] = id .. ':queue', topic
    bodies[stored * 6 + 5], bodies[stored * 6 + 6] = id .. ':keep', '0 ' .. lane .. ' ' .. expires
    stored = stored + 1
  end
end

if stored > 0 then
  redis.call('HSET', payload, unpack(bodies))
  redis.call('ZADD', delay_tasks, unpack(dues))
  if soonest < earliest then wake(delay_wake) end
  redis.pcall('SADD', topics, topic)
  count(counters, topic, 'produced', stored)
  note(history, topic, now_us, 'p', stored)
end
remember(call_key, call, table.concat(codes, ' '))
return status
