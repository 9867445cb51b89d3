-- count_topics: reads for people how many messages topics have, each topic as it is at one instant.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 counters hash
-- ARGV     prefix, events; per topic: topic; now_us
--          (events: the counters to read, separated by spaces; the last one is that of stale entries)
-- Returns  per topic a text, separated by spaces: entries in its lists, leases, when the message next
--          in line was produced ('-' if there is none or it cannot be read), the counters.
--          No further topics once reply_bytes of bodies were read; ask again for those
-- Keeps    I8; reads only
-- Uses     limits lanes batch
local payload, monitor, counters = KEYS[1], KEYS[2], KEYS[3]
local prefix, events = ARGV[1], ARGV[2]
local near, far = 512, 131072  -- bytes from the end of a body: without a history, and with the longest one
local bytes = 0

redis.call('HLEN', payload)
redis.call('ZCARD', monitor)
local names = {}
for name in string.gmatch(events, '%S+') do names[#names + 1] = ':' .. name end

-- A length; 0 for the refusal of a key of another type.
local function number(length)
  return type(length) == 'number' and length or 0
end

-- A counter as digits; 0 if it is missing or another program wrote something else there.
local function whole(text)
  return text and #text <= 20 and string.find(text, '^-?%d+$') and text or 0
end

-- The field stands behind the payload and the headers, and no text behind it can hold its name.
local function produced_at(body)
  if not body then return end
  bytes = bytes + #body
  local found = string.match(string.sub(body, -near), '.*"created_at":([%d.]+)')
  if not found and #body > near then
    found = string.match(string.sub(body, -far), '.*"created_at":([%d.]+)')
  end
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

local rows, fields, row = {}, {}, {}
for t, topic in ipairs(batch(3, 1)) do
  if bytes >= reply_bytes then break end
  for n = 1, #names do fields[n] = topic .. names[n] end
  local counted = redis.pcall('HMGET', counters, unpack(fields))
  local has_stale = counted[#names]
  for n = 1, #names do row[n + 3] = whole(counted[n]) end

  local processing = prefix .. topic .. ':processing'
  local entries, oldest = 0, nil
  for n = 1, #lanes do
    local list = prefix .. topic .. suffixes[lanes[n]]
    local count = number(redis.pcall('LLEN', list))
    if count > 0 then
      local first = produced_at(first_of(topic, list, processing, has_stale))
      if first and (not oldest or tonumber(first) < tonumber(oldest)) then oldest = first end
    end
    entries = entries + count
  end
  row[1], row[2], row[3] = entries, number(redis.pcall('HLEN', processing)), oldest or '-'
  rows[t] = table.concat(row, ' ')
end
return rows
