-- process_delay_message: moves due messages to their lanes; priority and expiry are kept.
-- KEYS     1 payload hash   2 delay_tasks zset   3 all_expire_monitor zset   4 delay_wake list
--          5 counters hash
-- ARGV     prefix, limit; now_us
-- Returns  ms until the next one is due (-1 for none, 0 for at once), ids promoted,
--          ids whose leftovers were cleaned up, ids put off for put_off_ms because their topic is
--          missing or a key of it has the wrong type
-- Keeps    I1 I2 I6 I7 I8
-- Uses     limits lanes clock bounded count instant is_name wake relieve
local payload, delay_tasks, monitor = KEYS[1], KEYS[2], KEYS[3]
local delay_wake, counters = KEYS[4], KEYS[5]
local prefix, limit = ARGV[1], bounded(ARGV[2])
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

redis.call('ZCARD', monitor)
redis.call('HLEN', payload)
local due = redis.call('ZRANGE', delay_tasks, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit)
local promoted, cleaned, poisoned, groups, usable = {}, {}, {}, {}, {}
local deadlines, spare = {}, {}

for _, id in ipairs(due) do
  local stored = redis.call('HMGET', payload, id .. ':queue', id .. ':keep')
  local topic = stored[1]
  local leased, lane, expires = string.match(stored[2] or '', '^(%d+) (%S+) (%S+)$')
  local list = topic and is_name(topic) and prefix .. topic .. (suffixes[lane] or suffixes.normal)
  if list and usable[list] == nil then usable[list] = type(redis.pcall('LLEN', list)) == 'number' end
  if redis.call('HEXISTS', payload, id) == 0 then
    cleaned[#cleaned + 1] = id
    spare[#spare + 1] = id .. ':queue'
    spare[#spare + 1] = id .. ':keep'
  elseif not list or not usable[list] then
    poisoned[#poisoned + 1] = id
  else
    local group = groups[list] or { topic = topic, ids = {} }
    group.ids[#group.ids + 1] = id
    groups[list] = group
    promoted[#promoted + 1] = id
    deadlines[#deadlines + 1] = instant(expires)
    deadlines[#deadlines + 1] = id
    if leased == '0' then spare[#spare + 1] = id .. ':keep' end
  end
end

if #due > 0 then relieve(payload) end
if #promoted > 0 then redis.call('ZREM', delay_tasks, unpack(promoted)) end
if #cleaned > 0 then redis.call('ZREM', delay_tasks, unpack(cleaned)) end
if #spare > 0 then redis.call('HDEL', payload, unpack(spare)) end
for _, id in ipairs(poisoned) do redis.call('ZADD', delay_tasks, now_ms + put_off_ms, id) end
if #deadlines > 0 then redis.call('ZADD', monitor, unpack(deadlines)) end
for list, group in pairs(groups) do
  redis.call('LPUSH', list, unpack(group.ids))
  wake(prefix .. group.topic .. ':wake')
  count(counters, group.topic, 'promoted', #group.ids)
end

local next_one = redis.call('ZRANGE', delay_tasks, 0, 0, 'WITHSCORES')
local wait_ms = -1
if next_one[1] then
  wait_ms = math.max(0, math.min(tonumber(next_one[2]) - now_ms, most_ms))
else
  redis.call('DEL', delay_wake)
end
return { wait_ms, promoted, cleaned, poisoned }
