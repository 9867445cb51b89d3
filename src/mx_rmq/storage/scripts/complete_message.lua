-- complete_message: the handler succeeded, so the message is finished and forgotten, at once or after a
-- while.
-- KEYS     1 payload hash   2 processing hash   3 all_expire_monitor zset   4 done zset
--          5 counters hash
-- ARGV     prefix, topic, history, times; per delivery: id, token, kept; now_us
--          (kept: how many ms the id stays taken, 0 for not at all; or 'dedup_ms remember_ms took_ms' to
--          remember for remember_ms that the message was done, after took_ms;
--          history: '' or the prefix of the queue's keys, to count in the history;
--          times: how long the messages ran and waited, see lib/spread.lua)
-- Returns  per delivery: 1 done | 0 stale | -1 gone
-- Keeps    I1 I2 I3 I4 I5 I6
-- Uses     limits clock count history spread batch held ended
local payload, processing, monitor, done, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix, topic, history, times = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)

redis.call('ZCARD', monitor)
redis.call('ZCARD', done)
local spread = spread_of(times)
local ids, status = held(payload, processing, 5, 3)
local finished, fields, memories, wishes, m = {}, {}, {}, nil, 0
for n = 1, #ids do
  local id = ids[n]
  if status[n] == 1 then
    finished[m + 1] = id
    fields[m * 3 + 1], fields[m * 3 + 2], fields[m * 3 + 3] = id, id .. ':queue', id .. ':keep'
    m = m + 1
    local kept = ARGV[5 + (n - 1) * 3 + 2]
    local dedup_ms = tonumber(kept)
    if not dedup_ms then
      local first, wish = string.match(kept, '^(%d+) (.+)$')
      wishes = wishes or {}
      wishes[id], dedup_ms = wish_of(wish or kept), tonumber(first)
    end
    if dedup_ms > 0 then
      memories[#memories + 1] = now_ms + dedup_ms
      memories[#memories + 1] = id
    end
  end
end
if #finished > 0 then
  redis.call('HDEL', processing, unpack(finished))
  redis.call('ZREM', monitor, unpack(finished))
  redis.call('HDEL', payload, unpack(fields))
  if #memories > 0 then
    redis.call('ZADD', done, unpack(memories))
    -- For each id added, up to two expired ones are removed, so the set never holds many expired ids.
    local forgotten = redis.call('ZRANGE', done, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, #memories)
    if #forgotten > 0 then redis.call('ZREM', done, unpack(forgotten)) end
  end
  for id, wish in pairs(wishes or {}) do note_end(prefix, id, 'done', now_ms, topic, wish) end
  count(counters, topic, 'completed', #finished)
  note(history, topic, now_us, 'c', #finished, spread)
end
return status
