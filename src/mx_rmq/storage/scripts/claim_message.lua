-- claim_message: leases pending messages of some topics to a worker, urgent ones first.
-- Topics are served in the given order. One that has a key of another type stops no other.
-- A pending entry is only a hint: it is dropped if the message has no body or no deadline, belongs to
-- another topic or is already leased.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 paused set   4 fence string   5 counters hash;
--          per topic: 6 processing hash   7 pending:high list   8 pending list   9 pending:low list
--          10 wake list
-- ARGV     lease_ms, holder, history, runs; per topic: topic, limit, batch; now_us
--          (history: '' or the prefix of the queue's keys, to count in the history; runs: handler calls
--          that all the messages may make; limit: messages of the topic; batch: messages in one call)
-- Returns  now_us, then per topic: entries left in its lists (-1 while it is paused or held; the server's
--          refusal if a key cannot be used), how many deliveries follow, and per delivery:
--          id, body, token, expires_ms ('inf' for never; may have passed)
-- Keeps    I1 I2 I3 I6 I7 I8
-- Uses     limits lanes clock digits batch fence history hints leased wake
local payload, monitor, paused, fence, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local lease_ms, holder, history, runs = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local topics = batch(5, 3)
local now_us = clock()
local now = digits(now_us)
local ends = digits(math.floor(now_us / 1000) + lease_ms)
local chunk = 100  -- entries taken at once; no further chunk past most_messages or reply_bytes

local limits, batches, lists, stale = {}, {}, { paused }, {}
for n, topic in ipairs(topics) do
  local first = 6 + (n - 1) * 5
  for key = 1, 4 do lists[#lists + 1] = KEYS[first + key] end
  stale[n] = topic .. ':stale'
  limits[n], batches[n] = tonumber(ARGV[5 + (n - 1) * 3 + 1]), tonumber(ARGV[5 + (n - 1) * 3 + 2])
  if limits[n] % 1 + runs % 1 ~= 0 or batches[n] < 1 then error('BADARGS a limit is no whole number', 0) end
end

-- A worker that has nothing to do asks for all its topics, and this one command answers.
local rows, width = { now }, 1
if redis.call('EXISTS', unpack(lists)) == 0 then
  if #topics == 1 then redis.call('HLEN', KEYS[6]) end  -- the one claim that tells of an idle broken topic
  -- Empty lists have no stale entries, whatever another program did to them.
  redis.pcall('HDEL', counters, unpack(stale))
  for n = 1, 2 * #topics do rows[n + 1] = 0 end
  return rows
end

-- A topic is held while messages that came before are in the shards of an older generation.
local stops = {}
for n, topic in ipairs(topics) do
  stops[n], stops[#topics + n] = topic, '=held:' .. topic
end
local pauses = redis.pcall('SMISMEMBER', paused, unpack(stops))
if pauses.err and not string.find(pauses.err, 'WRONGTYPE', 1, true) then return pauses end
redis.call('HLEN', payload)
redis.call('ZCARD', monitor)

-- How many entries are in the lists of a topic, in all and by lane; or why it cannot be served.
local function entries_of(first)
  if #topics > 1 then  -- most topics of a worker are empty, and cost one command
    local found = redis.call('EXISTS', KEYS[first + 1], KEYS[first + 2], KEYS[first + 3])
    if found == 0 then return 0 end
  end
  local held, left, lengths = redis.pcall('HLEN', KEYS[first]), 0, {}
  if type(held) ~= 'number' then return held.err end
  for key = 1, 3 do
    local length = redis.pcall('LLEN', KEYS[first + key])
    if type(length) ~= 'number' then return length.err end
    left, lengths[key] = left + length, length
  end
  return left, lengths
end

local entries, by_lane, emptied = {}, {}, {}
for n = 1, #topics do
  local first = 6 + (n - 1) * 5
  entries[n] = -1
  if pauses[n] ~= 1 and pauses[#topics + n] ~= 1 then entries[n], by_lane[n] = entries_of(first) end
  if entries[n] == 0 then emptied[#emptied + 1] = stale[n] end
end
if #emptied > 0 then redis.pcall('HDEL', counters, unpack(emptied)) end

local deadlines, claimed = {}, {}
local taken, bytes, looked = 0, 0, 0  -- in all topics
local topic, processing, leases, got  -- of the topic that is served
local given, first_token
local by_holder = ' ' .. holder .. ' run'

local function take(ids, lane)
  local fields = {}
  for n = 1, #ids do
    local id = ids[n]
    fields[n * 3 - 2], fields[n * 3 - 1], fields[n * 3] = id, id .. ':queue', id .. ':keep'
  end
  local stored = redis.call('HMGET', payload, unpack(fields))
  local expiries = redis.call('ZMSCORE', monitor, unpack(ids))
  local held = redis.call('HMGET', processing, unpack(ids))
  local in_lane, into, at, count, size = ' ' .. lane .. ' ', rows, width, 0, 0
  local of_topic, known, mine, dues, before, all = topic, claimed, leases, deadlines, got * 2, taken * 2
  for n = 1, #ids do
    local id, body, keep = ids[n], stored[n * 3 - 2], stored[n * 3]
    if body and stored[n * 3 - 1] == of_topic and expiries[n] and not held[n] and not known[id] then
      known[id] = true
      if not given then
        given = next_fence(fence, now_us)
        first_token = '1@' .. given
      end
      local expires, token = expiries[n], first_token
      if keep then token = leased_before(keep) + 1 .. '@' .. given end
      mine[before + 1], mine[before + 2] = id, token .. in_lane .. expires .. by_holder
      dues[all + 1], dues[all + 2] = ends, id
      into[at + 1], into[at + 2], into[at + 3], into[at + 4] = id, body, token, expires
      before, all, at, count, size = before + 2, all + 2, at + 4, count + 1, size + #body
    end
  end
  width, got, taken, bytes = at, got + count, taken + count, bytes + size
end

for n = 1, #topics do
  local first, left = 6 + (n - 1) * 5, entries[n]
  local place, before = width + 1, looked
  topic, processing, leases, got = topics[n], KEYS[first], {}, 0
  rows[place], rows[place + 1], width = left, 0, width + 2
  local limit = type(left) == 'number' and left > 0 and math.min(limits[n], runs * batches[n]) or 0
  for number, lane in ipairs(lanes) do
    local empty = limit <= 0 or by_lane[n][number] == 0
    while not empty and got < limit and looked < most_messages and bytes < reply_bytes do
      local size = taken > 0 and bytes / taken or reply_bytes / 10  -- a guess, until some are known
      local fitting = math.max(1, math.floor((reply_bytes - bytes) / size))
      local wanted = math.min(limit - got, chunk, most_messages - looked, fitting)
      local ids = redis.call('RPOP', KEYS[first + number], wanted) or {}
      if #ids > 0 then take(ids, lane) end
      looked = looked + #ids
      empty = #ids < wanted
    end
  end
  if got > 0 then
    redis.call('HSET', processing, unpack(leases))
    note(history, topic, now_us, 'd', got)
    runs = runs - math.ceil(got / batches[n])
  end
  if looked > before then
    entries[n] = left - (looked - before)
    note_hints(counters, topic, got - (looked - before), entries[n])
  end
  rows[place], rows[place + 1] = entries[n], got
end
if taken > 0 then redis.call('ZADD', monitor, unpack(deadlines)) end

-- Last, since a growing write must not come first; see lib/relieve.lua.
local spent = {}
for n = 1, #topics do
  local first, left = 6 + (n - 1) * 5, entries[n]
  if left == 0 then spent[#spent + 1] = KEYS[first + 4] end
  if type(left) == 'number' and left > 0 then wake(KEYS[first + 4]) end
end
if #spent > 0 then redis.call('DEL', unpack(spent)) end
return rows
