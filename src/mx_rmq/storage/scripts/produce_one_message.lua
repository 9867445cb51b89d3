-- produce_one_message: stores a message that comes alone and makes it pending at once. It does what
-- produce_normal_message does, without its tables: for one message they cost more than the commands.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 dlq zset   4 done zset
--          5 pending:high list   6 pending list   7 pending:low list   8 wake list
--          9 topics set   10 counters hash   11 call string
-- ARGV     topic, call, max_bytes, history, id, lane, ttl_ms, body; now_us
--          (call: '' or the name of this call of this producer; ttl_ms: 'inf' for no expiry;
--          history: '' or the prefix of the queue's keys, to count in the history)
-- Returns  per message: 1 stored | 0 already live | -1 already dead | -2 done and remembered
-- Keeps    I1 I2 I5 I6 I7 I8
-- Uses     limits lanes clock count history wake calls
local payload, monitor, dlq, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lists = lists_at(5)
local wake_list, topics, counters, call_key = KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local topic, call, max_bytes, history = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local id, lane, ttl_ms, body = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

local answer = answer_of(call_key, call)
if answer then return answer end

local list = lists[lane]
if not list then error('BADLANE ' .. lane .. ' of message ' .. id, 0) end
if #body > max_bytes then
  error('TOOLARGE message ' .. id .. ' has ' .. #body .. ' bytes, the limit is ' .. max_bytes, 0)
end
local deadline = ttl_ms == 'inf' and ttl_ms or now_ms + ttl_ms

-- Each reply says whether the id is taken, and that the key is of its type.
local live = redis.call('HEXISTS', payload, id) == 1
local died = redis.call('ZSCORE', dlq, id)
local sealed, memory = unpack(redis.call('ZMSCORE', done, '=sealed', id))
if sealed then error('SEALED the shard takes no new messages', 0) end
local code = live and '0' or died and '-1' or memory and tonumber(memory) > now_ms and '-2' or '1'
if code == '1' then
  redis.call('LLEN', list)
  -- The first write needs no check before it: if the server refuses it, nothing has changed.
  redis.call('ZADD', monitor, deadline, id)
  redis.call('HSET', payload, id, body, id .. ':queue', topic)
  redis.call('LPUSH', list, id)
  wake(wake_list)
  redis.pcall('SADD', topics, topic)
  -- As text: a number would be written as text for each command.
  count(counters, topic, 'produced', '1')
  note(history, topic, now_us, 'p', '1')
end
remember(call_key, call, code)
return { tonumber(code) }
