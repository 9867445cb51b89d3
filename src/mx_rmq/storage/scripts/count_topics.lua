-- count_topics: reads for people how many messages topics have, each topic as it is at one instant.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 counters hash
-- ARGV     prefix, events; per topic: topic; now_us
--          (events: the counters to read, separated by spaces; the last one is that of stale entries)
-- Returns  per topic: entries in its lists, leases, when the message next in line was produced (nil if
--          there is none or it cannot be read), each counter as it is stored (nil if there is none).
--          No further topics once reply_bytes of bodies were read; ask again for those
-- Keeps    I8; reads only
-- Uses     limits lanes batch
local payload, monitor, counters = KEYS[1], KEYS[2], KEYS[3]
local prefix, events = ARGV[1], ARGV[2]
local tails = {128, 512, 131072}  -- bytes from the end of a body; the last one has room for any history
local bytes = 0

redis.call('HLEN', payload)
redis.call('ZCARD', monitor)
local places = {  -- what of the counters says how many entries and leases there are
  produced = 1, replayed = 1, adjusted = 1, stale = 1, completed = -1, dead = -1, cancelled = -1,
}
local names, signs = {}, {}
for name in string.gmatch(events, '%S+') do
  names[#names + 1] = ':' .. name
  signs[#names] = places[name] or 0
end

-- A length; 0 for the refusal of a key of another type.
local function number(length)
  return type(length) == 'number' and length or 0
end

-- How many live messages and stale entries a topic has, by its counters; nil if one cannot be read.
local function expected(counted)
  local sum = 0
  for n = 1, #names do
    local count = counted[n]
    if count then
      count = tonumber(count)
      if not count then return end
      sum = sum + signs[n] * count
    end
  end
  return sum
end

-- The field stands behind the payload and the headers, and no text behind it can hold its name.
local function produced_at(body)
  if not body then return end
  bytes = bytes + #body
  local from, last
  for n = 1, #tails do
    from = -tails[n]
    repeat
      local _, behind = string.find(body, '"created_at":', from, true)
      last, from = behind or last, behind
    until not behind
    if last or #body <= tails[n] then break end
  end
  local found = last and string.match(body, '^[%d.]+', last + 1)
  return found and tonumber(found) and found
end

-- The body of the first entry that a claim would deliver, if that is among the first 100.
local function first_of(topic, list, processing, stale)
  if not stale then
    local id = redis.call('LINDEX', list, -1)
    return redis.call('HGET', payload, id)
  end
  local ids = redis.call('LRANGE', list, -100, -1)
  for n = #ids, 1, -1 do
    local id = ids[n]
    local ours = redis.call('HGET', payload, id .. ':queue') == topic and redis.call('ZSCORE', monitor, id)
    local body = ours and redis.pcall('HEXISTS', processing, id) == 0 and redis.call('HGET', payload, id)
    if body then return body end
  end
end

local cells, fields = {}, {}
for t, topic in ipairs(batch(3, 1)) do
  if bytes >= reply_bytes then break end
  for n = 1, #names do fields[n] = topic .. names[n] end
  local counted = redis.pcall('HMGET', counters, unpack(fields))

  local key = prefix .. topic
  local processing = key .. ':processing'
  local entries, leases, oldest = 0, 0, nil
  local function look(lane)
    local list = key .. suffixes[lane]
    local count = number(redis.pcall('LLEN', list))
    if count > 0 then
      local first = produced_at(first_of(topic, list, processing, counted[#names]))
      if first and (not oldest or tonumber(first) < tonumber(oldest)) then oldest = first end
    end
    entries = entries + count
  end
  look(usual)
  if entries ~= expected(counted) then  -- else all its messages are there, and the other places are empty
    for n = 1, #lanes do
      if lanes[n] ~= usual then look(lanes[n]) end
    end
    leases = number(redis.pcall('HLEN', processing))
  end

  local at = (t - 1) * (#names + 3)
  cells[at + 1], cells[at + 2], cells[at + 3] = entries, leases, oldest or false
  for n = 1, #names do cells[at + 3 + n] = counted[n] or false end
end
return cells
