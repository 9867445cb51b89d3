-- purge_topic: an operator withdraws everything that is pending in a topic.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 processing hash
--          4 pending:high list   5 pending list   6 pending:low list   7 wake list
--          8 counters hash
-- ARGV     topic, limit; now_us
-- Returns  how many messages were withdrawn, how many entries are left; ask again while some are
-- Keeps    I1 I2 I3 I6 I8
-- Uses     limits bounded count hints
local payload, monitor, processing, wake_list, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[7], KEYS[8]
local topic, limit = ARGV[1], bounded(ARGV[2])

redis.call('HLEN', payload)
redis.call('ZCARD', monitor)
redis.call('HLEN', processing)
local left = 0
for n = 4, 6 do left = left + redis.call('LLEN', KEYS[n]) end

local withdrawn, looked = 0, 0
for n = 4, 6 do
  local ids = limit > looked and redis.call('RPOP', KEYS[n], limit - looked) or {}
  looked = looked + #ids
  for _, id in ipairs(ids) do
    local mine = redis.call('HGET', payload, id .. ':queue') == topic
    if mine and redis.call('HEXISTS', processing, id) == 0 and redis.call('ZREM', monitor, id) == 1 then
      redis.call('HDEL', payload, id, id .. ':queue', id .. ':keep')
      withdrawn = withdrawn + 1
    end
  end
end
if left == looked then redis.call('DEL', wake_list) end
count(counters, topic, 'cancelled', withdrawn)
note_hints(counters, topic, withdrawn - looked, left - looked)
return { withdrawn, left - looked }
