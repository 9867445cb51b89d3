-- replay_dlq: an operator makes dead messages pending again, at the tail of their lane.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 dlq zset   4 dlq_payload hash
--          5 dlq_groups hash   6 counters hash
-- ARGV     prefix; per message: id, died_ms, lane, ttl_ms, body; now_us
--          (died_ms: '' or the time of death that the caller read; body: '' keeps the stored bytes)
-- Returns  per message: 1 replayed | 0 it died again since | -1 gone | -2 already live
--          | -3 its topic is missing or a key of it has the wrong type
-- Keeps    I1 I2 I5 I6 I7 I8
-- Uses     limits lanes clock count wake batch leave_groups
local payload, monitor, dlq, dlq_payload = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local dlq_groups, counters = KEYS[5], KEYS[6]
local prefix = ARGV[1]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

redis.call('ZCARD', monitor)
redis.call('HLEN', payload)
local ids, status, seen = batch(2, 5), {}, {}
if #ids == 0 then return status end
local labels = {}
for n = 1, #ids do labels[n * 2 - 1], labels[n * 2] = ids[n] .. ':queue', ids[n] .. ':group' end
local scores = redis.call('ZMSCORE', dlq, unpack(ids))
local stored = redis.call('HMGET', dlq_payload, unpack(labels))
local live = redis.call('HMGET', payload, unpack(ids))

-- Whether a key is a list; a topic's first message has none yet.
local is_list = {}
local function may_push(list)
  if is_list[list] == nil then is_list[list] = type(redis.pcall('LLEN', list)) == 'number' end
  return is_list[list]
end

-- When a lifetime ends that begins now, as text: the server writes a number anew for each message.
local ends = { inf = 'inf' }
local function end_of(ttl)
  ends[ttl] = ends[ttl] or string.format('%.0f', now_ms + tonumber(ttl))
  return ends[ttl]
end

local replayed, fields, bodies, deadlines, pushes, tally, left = {}, {}, {}, {}, {}, {}, {}
local m = 0
for n = 1, #ids do
  local id, at, score = ids[n], 2 + (n - 1) * 5, scores[n]
  local died, lane, ttl, body = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local topic, group = stored[n * 2 - 1], stored[n * 2]
  local list = topic and prefix .. topic .. (suffixes[lane] or suffixes.normal)
  local here = score and not seen[id] and redis.call('HEXISTS', dlq_payload, id) == 1
  if not here then
    status[n] = -1
  elseif died ~= '' and died ~= score and tonumber(died) ~= tonumber(score) then
    status[n] = 0
  elseif live[n] then
    status[n] = -2
  elseif not list or not may_push(list) then
    status[n] = -3
  else
    status[n], seen[id] = 1, true
    local queue = labels[n * 2 - 1]
    replayed[m + 1] = id
    fields[m * 4 + 1], fields[m * 4 + 2] = id, queue
    fields[m * 4 + 3], fields[m * 4 + 4] = labels[n * 2], id .. ':error'
    bodies[m * 4 + 1], bodies[m * 4 + 2] = id, body == '' and redis.call('HGET', dlq_payload, id) or body
    bodies[m * 4 + 3], bodies[m * 4 + 4] = queue, topic
    deadlines[m * 2 + 1], deadlines[m * 2 + 2] = end_of(ttl), id
    m = m + 1
    pushes[list] = pushes[list] or {}
    pushes[list][#pushes[list] + 1] = id
    tally[topic] = (tally[topic] or 0) + 1
    if group then left[group] = (left[group] or 0) + 1 end
  end
end
if #replayed > 0 then
  redis.call('ZREM', dlq, unpack(replayed))
  redis.call('HDEL', dlq_payload, unpack(fields))
  redis.call('HSET', payload, unpack(bodies))
  redis.call('ZADD', monitor, unpack(deadlines))
  for list, push in pairs(pushes) do redis.call('LPUSH', list, unpack(push)) end
  for topic, amount in pairs(tally) do
    wake(prefix .. topic .. ':wake')
    count(counters, topic, 'replayed', amount)
  end
  leave_groups(dlq_groups, left)
end
return status
