-- mend_message: examines messages for the audit. Reports what is wrong with each, judged by everything
-- the queue holds of it at this instant, and, if asked to, puts the message back where it is not lost.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 delay_tasks zset   4 dlq zset
--          5 dlq_payload hash   6 dlq_groups hash
-- ARGV     prefix, mode, lease_ms; per suspect: id, found_in, listed, fallback, group; now_us
--          (mode: 'look' | 'mend'; found_in: '' or the topic in whose processing hash it was seen;
--          listed: 1 unless it is known to be in no pending list; fallback: topic if it has none;
--          group: '' or 'id label' of a dead message that may have no group)
-- Returns  per suspect: place, topic, deadline_ms, findings separated by spaces
--          (place: pending | processing | delayed | dead | none; the finding 'ungrouped' is no damage: the
--          message died before there were groups)
-- Keeps    I1 I2 I3 I6 I7 I8
-- Uses     limits lanes clock wake batch instant is_name leased relieve join_groups
--          leave_groups
local payload, monitor, delay_tasks = KEYS[1], KEYS[2], KEYS[3]
local dlq, dlq_payload, dlq_groups = KEYS[4], KEYS[5], KEYS[6]
local prefix, mend, lease_ms = ARGV[1], ARGV[2] == 'mend', tonumber(ARGV[3])
local now_ms = math.floor(clock() / 1000)

redis.call('HLEN', payload)
redis.call('ZCARD', monitor)
redis.call('ZCARD', delay_tasks)
redis.call('ZCARD', dlq)
redis.call('HLEN', dlq_payload)

local function lease_in(topic, id)
  local lease = topic and redis.pcall('HGET', prefix .. topic .. ':processing', id)
  return type(lease) == 'string' and lease or nil
end

local function examine(id, found_in, listed, fallback, group)
  local findings = {}
  local function wrong(finding, ...)
    findings[#findings + 1] = finding
    for _, command in ipairs(mend and { ... } or {}) do redis.call(unpack(command)) end
  end

  -- Bodies are not read, only checked for: a thousand of them could be a gigabyte here.
  local body = redis.call('HEXISTS', payload, id) == 1
  local stored = redis.call('HMGET', payload, id .. ':queue', id .. ':keep')
  local topic, keep = stored[1], stored[2]
  local deadline, due = redis.call('ZSCORE', monitor, id), redis.call('ZSCORE', delay_tasks, id)
  local died = redis.call('ZSCORE', dlq, id)
  local dead_body = redis.call('HEXISTS', dlq_payload, id) == 1
  local remains = redis.call('HMGET', dlq_payload, id .. ':queue', id .. ':error', id .. ':group')
  local place = 'none'

  if body and not (topic and is_name(topic)) then
    topic = fallback
    wrong('body-without-topic', { 'HSET', payload, id .. ':queue', topic })
    if mend then redis.pcall('SADD', prefix .. 'topics', topic) end  -- where tools look for topics
  end
  if found_in ~= '' and found_in ~= topic and lease_in(found_in, id) then
    wrong('lease-in-wrong-topic', { 'HDEL', prefix .. found_in .. ':processing', id })
  end
  local lease = lease_in(topic, id)

  -- The next lease is made from `keep`. The scripts ignore text that mx-rmq did not write.
  local function check_keep()
    if not keep then return end
    local lane, expires = string.match(keep, '^%d+ (%S+) (%S+)$')
    local sound = leased_before(keep) .. ' ' .. (suffixes[lane] and lane or 'normal') .. ' ' .. instant(expires)
    if keep ~= sound then wrong('strange-keep', { 'HSET', payload, id .. ':keep', sound }) end
  end

  if not body then
    if lease then wrong('lease-without-body', { 'HDEL', prefix .. topic .. ':processing', id }) end
    if due then wrong('delay-without-body', { 'ZREM', delay_tasks, id }) end
    if deadline then wrong('deadline-without-body', { 'ZREM', monitor, id }) end
    if topic or keep then
      wrong('fields-without-body', { 'HDEL', payload, id .. ':queue', id .. ':keep' })
    end
  elseif lease then
    place = 'processing'
    if due then wrong('leased-and-delayed', { 'ZREM', delay_tasks, id }) end
    if not deadline or deadline == 'inf' then
      wrong('lease-without-deadline', { 'ZADD', monitor, now_ms + lease_ms, id })
    end
  elseif due then
    place = 'delayed'
    check_keep()
    if deadline then wrong('delayed-with-deadline', { 'ZREM', monitor, id }) end
  else
    place = 'pending'
    check_keep()
    if not deadline or listed == '0' then
      local lane, expires = string.match(keep or '', '^%d+ (%S+) (%S+)$')
      local list = prefix .. topic .. (suffixes[lane] or suffixes.normal)
      if type(redis.pcall('LLEN', list)) ~= 'number' then
        findings[#findings + 1] = 'body-in-no-place'
      else
        wrong('body-in-no-place', { 'ZADD', monitor, deadline or instant(expires), id }, { 'LPUSH', list, id })
        if mend then wake(prefix .. topic .. ':wake') end
      end
    end
  end

  local own = { id, id .. ':queue', id .. ':error', id .. ':group' }
  if body and (died or dead_body) then
    local other, kept = id .. '.dead', mend and redis.call('HGET', dlq_payload, id)
    wrong('live-and-dead', { 'ZREM', dlq, id }, { 'HDEL', dlq_payload, unpack(own) })
    if kept then
      redis.call('ZADD', dlq, died or now_ms, other)
      redis.call('HSET', dlq_payload, other, kept, other .. ':queue', remains[1] or fallback,
        other .. ':error', remains[2] or '')
      if remains[3] then redis.call('HSET', dlq_payload, other .. ':group', remains[3]) end
    elseif mend and remains[3] then
      leave_groups(dlq_groups, { [remains[3]] = 1 })
    end
  elseif dead_body then
    place, topic = 'dead', remains[1] or fallback
    if not died then wrong('dead-but-unlisted', { 'ZADD', dlq, now_ms, id }) end
    if not remains[1] then
      wrong('dead-without-topic', { 'HSET', dlq_payload, id .. ':queue', topic })
      if mend then redis.pcall('SADD', prefix .. 'topics', topic) end
    end
    local joined = {}
    local joins = not remains[3] and tally_group(joined, group, tonumber(died or now_ms))
    if joins then
      wrong('ungrouped', { 'HSET', dlq_payload, id .. ':group', joins })
      if mend then join_groups(dlq_groups, joined) end
    end
  elseif died or remains[1] or remains[2] or remains[3] then
    wrong('dead-without-body', { 'ZREM', dlq, id }, { 'HDEL', dlq_payload, unpack(own) })
    if mend and remains[3] then leave_groups(dlq_groups, { [remains[3]] = 1 }) end
  end
  return place, topic or '', deadline or '', table.concat(findings, ' ')
end

if mend then relieve(payload) end
local answer = {}
for n, id in ipairs(batch(4, 5)) do
  local at = 4 + (n - 1) * 5
  local place, topic, deadline, findings =
    examine(id, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  for _, cell in ipairs({ place, topic, deadline, findings }) do answer[#answer + 1] = cell end
end
return answer
