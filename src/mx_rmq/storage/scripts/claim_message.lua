-- claim_message: leases up to `limit` pending messages of a topic to a worker, urgent ones first.
-- A pending entry is only a hint: it is dropped if the message has no body or no deadline, belongs to
-- another topic or is already leased.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 processing hash
--          4 pending:high list   5 pending list   6 pending:low list   7 wake list   8 paused set
--          9 fence string   10 counters hash
-- ARGV     topic, limit, lease_ms, holder, history; now_us
--          (history: '' or the prefix of the queue's keys, to count in the history)
-- Returns  now_us, entries left in the lists (-1 while the topic is paused),
--          then per delivery: id, body, token, expires_ms ('inf' for never; may have passed)
-- Keeps    I1 I2 I3 I6 I7 I8
-- Uses     limits lanes clock digits fence history hints leased wake
local payload, monitor, processing = KEYS[1], KEYS[2], KEYS[3]
local wake_list, paused, fence, counters = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local topic, limit, lease_ms, holder = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local history = ARGV[5]
local now_us = clock()
local now = digits(now_us)
local ends = digits(math.floor(now_us / 1000) + lease_ms)
local chunk = 100  -- entries taken at once; no further chunk past most_messages or reply_bytes

if redis.pcall('SISMEMBER', paused, topic) == 1 then return { now, -1 } end
redis.call('HLEN', payload)
redis.call('ZCARD', monitor)
redis.call('HLEN', processing)
local left = 0
for n = 1, 3 do left = left + redis.call('LLEN', KEYS[3 + n]) end
-- Empty lists have no stale entries, whatever another program did to them.
if left == 0 then redis.pcall('HDEL', counters, topic .. ':stale') end

local rows, leases, deadlines, claimed = { now, 0 }, {}, {}, {}
local taken, bytes, looked = 0, 0, 0
local given, first_token

local function take(ids, lane)
  local fields = {}
  for n = 1, #ids do
    local id = ids[n]
    fields[n * 3 - 2], fields[n * 3 - 1], fields[n * 3] = id, id .. ':queue', id .. ':keep'
  end
  local stored = redis.call('HMGET', payload, unpack(fields))
  local expiries = redis.call('ZMSCORE', monitor, unpack(ids))
  local held = redis.call('HMGET', processing, unpack(ids))
  for n = 1, #ids do
    local id, body, keep = ids[n], stored[n * 3 - 2], stored[n * 3]
    if body and stored[n * 3 - 1] == topic and expiries[n] and not held[n] and not claimed[id] then
      claimed[id] = true
      if not given then
        given = next_fence(fence, now_us)
        first_token = '1@' .. given
      end
      local expires, token = expiries[n], first_token
      if keep then token = leased_before(keep) + 1 .. '@' .. given end
      leases[taken * 2 + 1] = id
      leases[taken * 2 + 2] = token .. ' ' .. lane .. ' ' .. expires .. ' ' .. holder .. ' run'
      deadlines[taken * 2 + 1], deadlines[taken * 2 + 2] = ends, id
      rows[taken * 4 + 3], rows[taken * 4 + 4] = id, body
      rows[taken * 4 + 5], rows[taken * 4 + 6] = token, expires
      taken, bytes = taken + 1, bytes + #body
    end
  end
end

for n, lane in ipairs(lanes) do
  local empty = false
  while not empty and taken < limit and looked < most_messages and bytes < reply_bytes do
    local size = taken > 0 and bytes / taken or reply_bytes / 10  -- a guess, until some are known
    local fitting = math.max(1, math.floor((reply_bytes - bytes) / size))
    local wanted = math.min(limit - taken, chunk, most_messages - looked, fitting)
    local ids = redis.call('RPOP', KEYS[3 + n], wanted) or {}
    if #ids > 0 then take(ids, lane) end
    looked = looked + #ids
    empty = #ids < wanted
  end
end

if taken > 0 then
  redis.call('HSET', processing, unpack(leases))
  redis.call('ZADD', monitor, unpack(deadlines))
  note(history, topic, now_us, 'd', taken)
end
left = left - looked
rows[2] = left
note_hints(counters, topic, taken - looked, left)
if left > 0 then wake(wake_list) else redis.call('DEL', wake_list) end
return rows
