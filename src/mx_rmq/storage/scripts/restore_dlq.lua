-- restore_dlq: an operator puts dead messages of an export back into the DLQ.
-- KEYS     1 payload hash   2 dlq zset   3 dlq_payload hash   4 dlq_groups hash   5 topics set
--          6 counters hash   7 done zset
-- ARGV     per message: id, topic, died_ms, body, error, group; now_us
--          (group: '' or 'id label')
-- Returns  per message: 1 restored | 0 already live | -1 already dead
-- Keeps    I1 I2 I5 I6 I8
-- Uses     limits count batch join_groups
local payload, dlq, dlq_payload, dlq_groups = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local topics, counters, done = KEYS[5], KEYS[6], KEYS[7]

if redis.call('ZSCORE', done, '=sealed') then error('SEALED the shard takes no new messages', 0) end
redis.call('HLEN', payload)
redis.call('ZCARD', dlq)
redis.call('HLEN', dlq_payload)
local ids, status, seen = batch(1, 6), {}, {}
local bodies, members, deaths, tally, joined = {}, {}, {}, {}, {}
local restored = 0
for n, id in ipairs(ids) do
  local at = 1 + (n - 1) * 6
  local topic, died, body, why = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if #died > 16 or not string.find(died, '^%d+$') or body == '' or topic == '' then
    error('BADARGS message ' .. id .. ' lacks a topic, a time of death or a body', 0)
  end
  if redis.call('HEXISTS', payload, id) == 1 then
    status[n] = 0
  elseif seen[id] or redis.call('ZSCORE', dlq, id) or redis.call('HEXISTS', dlq_payload, id) == 1 then
    status[n] = -1
  else
    status[n], seen[id] = 1, true
    bodies[restored * 6 + 1], bodies[restored * 6 + 2] = id, body
    bodies[restored * 6 + 3], bodies[restored * 6 + 4] = id .. ':queue', topic
    bodies[restored * 6 + 5], bodies[restored * 6 + 6] = id .. ':error', why
    deaths[restored * 2 + 1], deaths[restored * 2 + 2] = died, id
    local group = tally_group(joined, ARGV[at + 5], tonumber(died))
    if group then
      members[#members + 1] = id .. ':group'
      members[#members + 1] = group
    end
    tally[topic] = (tally[topic] or 0) + 1
    restored = restored + 1
  end
end
if restored > 0 then
  redis.call('HSET', dlq_payload, unpack(bodies))
  redis.call('ZADD', dlq, unpack(deaths))
  if #members > 0 then redis.call('HSET', dlq_payload, unpack(members)) end
  for topic, amount in pairs(tally) do
    redis.pcall('SADD', topics, topic)
    count(counters, topic, 'restored', amount)
  end
  join_groups(dlq_groups, joined)
end
return status
