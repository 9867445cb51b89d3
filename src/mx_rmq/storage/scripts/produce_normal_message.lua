-- produce_normal_message: stores messages and makes them pending at once.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 dlq zset   4 done zset
--          5 pending:high list   6 pending list   7 pending:low list   8 wake list
--          9 topics set   10 counters hash   11 call string
-- ARGV     topic, call, max_bytes, history; per message: id, lane, ttl_ms, body; now_us
--          (call: '' or the name of this call of this producer; ttl_ms: 'inf' for no expiry;
--          history: '' or the prefix of the queue's keys, to count in the history)
-- Returns  per message: 1 stored | 0 already live | -1 already dead | -2 done and remembered
-- Keeps    I1 I2 I5 I6 I7 I8
-- Uses     limits lanes clock digits count history wake batch admit calls
local payload, monitor, dlq, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lists = lists_at(5)
local wake_list, topics, counters, call_key = KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local topic, call, max_bytes, history = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

local answer = answer_of(call_key, call)
if answer then return answer end

redis.call('ZCARD', monitor)
local ids, status, codes = admit(payload, dlq, done, 5, 4, max_bytes, now_ms)

local bodies, deadlines, pushes, stored = {}, {}, {}, 0
local deadline_of = { inf = 'inf' }  -- by lifetime: most messages of a call share one
for n = 1, #ids do
  local id, at = ids[n], 5 + (n - 1) * 4
  local list = lists[ARGV[at + 1]]
  if status[n] == 1 then
    if not pushes[list] then
      redis.call('LLEN', list)
      pushes[list] = {}
    end
    local push = pushes[list]
    push[#push + 1] = id
    local ttl = ARGV[at + 2]
    if not deadline_of[ttl] then deadline_of[ttl] = digits(now_ms + tonumber(ttl)) end
    deadlines[stored * 2 + 1] = deadline_of[ttl]
    deadlines[stored * 2 + 2] = id
    bodies[stored * 4 + 1], bodies[stored * 4 + 2] = id, ARGV[at + 3]
    bodies[stored * 4 + 3], bodies[stored * 4 + 4] = id .. ':queue', topic
    stored = stored + 1
  end
end

if stored > 0 then
  redis.call('HSET', payload, unpack(bodies))
  redis.call('ZADD', monitor, unpack(deadlines))
  for list, push in pairs(pushes) do redis.call('LPUSH', list, unpack(push)) end
  wake(wake_list)
  redis.pcall('SADD', topics, topic)
  count(counters, topic, 'produced', stored)
  note(history, topic, now_us, 'p', stored)
end
remember(call_key, call, table.concat(codes, ' '))
return status
