-- move_to_dlq: the message will not be tried again; it is kept, with the reason, for an operator.
-- KEYS     1 payload hash   2 processing hash   3 all_expire_monitor zset   4 dlq zset
--          5 dlq_payload hash   6 dlq_groups hash   7 counters hash
-- ARGV     prefix, topic, history; per delivery: id, token, body, error, wish, group; now_us
--          (body: '' keeps the stored bytes as they are; wish: '' or 'remember_ms took_ms' to remember for
--          remember_ms that the message died, after took_ms; group: '' or 'id label';
--          history: '' or the prefix of the queue's keys, to count in the history)
-- Returns  per delivery: 1 done | 0 stale | -1 gone
-- Keeps    I1 I2 I3 I4 I5 I6 I7
-- Uses     limits clock count history death batch held ended join_groups
local payload, processing, monitor = KEYS[1], KEYS[2], KEYS[3]
local dlq, dlq_payload, dlq_groups, counters = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local prefix, topic, history = ARGV[1], ARGV[2], ARGV[3]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

redis.call('ZCARD', monitor)
redis.call('ZCARD', dlq)
redis.call('HLEN', dlq_payload)
local ids, status = held(payload, processing, 4, 6)
local left, fields, dead, bodies, deaths, wishes, reasons = {}, {}, 0, {}, {}, {}, {}
local members, joined = {}, {}
for n, id in ipairs(ids) do
  if status[n] == 1 then
    local at = 4 + (n - 1) * 6
    local body = ARGV[at + 2]
    if body == '' then body = redis.call('HGET', payload, id) end
    left[#left + 1] = id
    fields[#fields + 1] = id
    fields[#fields + 1] = id .. ':queue'
    fields[#fields + 1] = id .. ':keep'
    if body then
      bodies[dead * 6 + 1], bodies[dead * 6 + 2] = id, body
      bodies[dead * 6 + 3], bodies[dead * 6 + 4] = id .. ':queue', topic
      bodies[dead * 6 + 5], bodies[dead * 6 + 6] = id .. ':error', ARGV[at + 3]
      deaths[dead * 2 + 1], deaths[dead * 2 + 2] = now_ms, id
      if ARGV[at + 4] ~= '' then wishes[id] = wish_of(ARGV[at + 4]) end
      local event = death_of(ARGV[at + 3])
      reasons[event] = (reasons[event] or 0) + 1
      local group = tally_group(joined, ARGV[at + 5], now_ms)
      if group then
        members[#members + 1] = id .. ':group'
        members[#members + 1] = group
      end
      dead = dead + 1
    else
      status[n] = -1
    end
  end
end
if #left > 0 then
  redis.call('HDEL', processing, unpack(left))
  redis.call('ZREM', monitor, unpack(left))
  redis.call('HDEL', payload, unpack(fields))
end
if dead > 0 then
  redis.call('HSET', dlq_payload, unpack(bodies))
  redis.call('ZADD', dlq, unpack(deaths))
  if #members > 0 then redis.call('HSET', dlq_payload, unpack(members)) end
  for id, wish in pairs(wishes) do note_end(prefix, id, 'dead', now_ms, topic, wish) end
  count(counters, topic, 'dead', dead)
  for event, amount in pairs(reasons) do note(history, topic, now_us, event, amount) end
  join_groups(dlq_groups, joined)
end
return status
