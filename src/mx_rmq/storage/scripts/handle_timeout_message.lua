-- handle_timeout_message: the monitor takes over messages that are past their deadline, under a lease of
-- its own: deliveries whose lease ran out, and pending messages that expired. The monitor's next call
-- retries or dead-letters them. If the monitor dies first, the next one takes them over.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 delay_tasks zset   4 done zset
--          5 counters hash   6 fence string
-- ARGV     prefix, limit, lease_ms, holder, before_us, history; now_us
--          (before_us: '' or the instant until which the call is valid. A call that was delayed on its
--          way changes nothing: live owners, delayed with it, can extend their leases first;
--          history: '' or the prefix of the queue's keys, to count in the history)
-- Returns  now_us,
--          per message taken over: id, topic, body, token, cause, expires_ms, previous holder
--          (cause: 'lapsed' | 'started', which is lapsed after it began to run | 'expired'),
--          ids whose leftovers were cleaned up, ids put off for put_off_ms because their topic is
--          missing or a key of it has the wrong type, 1 if the call came too late or else 0
-- Keeps    I1 I2 I3 I6 I7 I8
-- Uses     limits lanes clock digits fence bounded count history hints instant is_name leased lease
--          drop_hint relieve
local payload, monitor, delay_tasks = KEYS[1], KEYS[2], KEYS[3]
local done, counters, fence = KEYS[4], KEYS[5], KEYS[6]
local prefix, limit, lease_ms, holder = ARGV[1], bounded(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local before_us, history = tonumber(ARGV[5]) or math.huge, ARGV[6]
local now_us = clock()
local now_ms = math.floor(now_us / 1000)
local now = digits(now_us)

if now_us > before_us then return { now, {}, {}, {}, 1 } end
redis.call('ZCARD', delay_tasks)
redis.call('HLEN', payload)
local forgotten = redis.call('ZRANGE', done, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, most_messages)
local late = redis.call('ZRANGE', monitor, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit)
local rows, leases, cleaned, poisoned, bytes = {}, {}, {}, {}, 0
local tally, stale = {}, {}

if #late > 0 then relieve(payload) end
local given
for _, id in ipairs(late) do
  if bytes >= reply_bytes then break end
  local stored = redis.call('HMGET', payload, id, id .. ':queue', id .. ':keep')
  local body, topic, keep = stored[1], stored[2], stored[3]
  local processing = topic and prefix .. topic .. ':processing'
  local lease = topic and redis.pcall('HGET', processing, id)
  if not body then
    cleaned[#cleaned + 1] = { id = id, processing = lease and not lease.err and processing }
  elseif not topic or type(lease) == 'table' or not is_name(topic) or not is_name(id) then
    poisoned[#poisoned + 1] = id
  elseif not lease and redis.call('ZSCORE', delay_tasks, id) then
    cleaned[#cleaned + 1] = { id = id, delayed = true }
  else
    local previous, cause = '-', 'expired'
    local leased, lane = leased_before(keep), string.match(keep or '', '^%d+ (%S+)')
    local expires
    if lease then
      leased, lane, expires = kept(lease)
      previous, cause = string.match(lease, '^%S+ %S+ %S+ (%S+) (%S+)')
      if cause ~= 'expired' and cause ~= 'started' then cause = 'lapsed' end
    else
      expires = digits(redis.call('ZSCORE', monitor, id))
    end
    given = given or next_fence(fence, now_us)
    local token = (leased + 1) .. '@' .. given
    leases[#leases + 1] = {
      id = id, topic = topic, processing = processing, pending = not lease, cause = cause,
      value = token .. ' ' .. (lane or 'normal') .. ' ' .. expires .. ' ' .. holder .. ' ' .. cause,
    }
    for _, cell in ipairs({ id, topic, body, token, cause, expires, previous or '-' }) do
      rows[#rows + 1] = cell
    end
    bytes = bytes + #body
  end
end

if #forgotten > 0 then redis.call('ZREM', done, unpack(forgotten)) end
local cleaned_ids = {}
for n, stray in ipairs(cleaned) do
  redis.call('ZREM', monitor, stray.id)
  if stray.processing then redis.call('HDEL', stray.processing, stray.id) end
  if not stray.delayed then redis.call('HDEL', payload, stray.id .. ':queue', stray.id .. ':keep') end
  cleaned_ids[n] = stray.id
end
for _, id in ipairs(poisoned) do redis.call('ZADD', monitor, now_ms + put_off_ms, id) end
for _, take in ipairs(leases) do
  redis.call('HSET', take.processing, take.id, take.value)
  redis.call('ZADD', monitor, now_ms + lease_ms, take.id)
  if take.pending then
    stale[take.topic] = (stale[take.topic] or 0) + drop_hint(prefix, take.topic, take.id, 1)
  end
  local causes = tally[take.topic] or {}
  local counted = take.cause == 'started' and 'lapsed' or take.cause
  causes[counted] = (causes[counted] or 0) + 1
  tally[take.topic] = causes
end
for topic, causes in pairs(tally) do
  for cause, amount in pairs(causes) do count(counters, topic, cause, amount) end
  note(history, topic, now_us, 'l', causes.lapsed or 0)
end
for topic, amount in pairs(stale) do note_hints(counters, topic, amount) end
return { now, rows, cleaned_ids, poisoned, 0 }
