-- count_topics: reads for people how many messages topics have, each topic as it is at one instant.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 counters hash
-- ARGV     prefix, events; per topic: topic, rare; now_us
--          (events: the counters to read of every topic, rare: those to read of this one too; names
--          separated by spaces)
-- Returns  per topic: entries in its lists, leases, when the message next in line was produced (nil if
--          there is none or it cannot be read), each counter as it is stored (nil if there is none).
--          No further topics once reply_bytes of bodies were read; ask again for those
-- Keeps    I8; reads only
-- Uses     limits lanes batch
local payload, monitor, counters = KEYS[1], KEYS[2], KEYS[3]
local prefix, events = ARGV[1], ARGV[2]
local tails = {128, 512, 4096, 131072}  -- bytes from the end of a body; the last one has room for any history
local bytes = 0

redis.call('HLEN', payload)
redis.call('ZCARD', monitor)

local signs = {  -- what of the counters says how many entries and leases there are
  produced = 1, replayed = 1, adjusted = 1, stale = 1, completed = -1, dead = -1, cancelled = -1,
}
-- Which counters to read of the n-th topic: how their fields end, and their signs. Most topics have the same.
local sets = {}
local function asked(n)
  local rare = ARGV[3 + (n - 1) * 2 + 1]
  local set = sets[rare]
  if not set then
    set = { endings = {}, signs = {} }
    for name in string.gmatch(events .. ' ' .. rare, '%S+') do
      local m = #set.endings + 1
      set.endings[m], set.signs[m] = ':' .. name, signs[name] or 0
      if name == 'stale' then set.stale = m end
    end
    sets[rare] = set
  end
  return set
end

-- A length; 0 for the refusal of a key of another type.
local function number(length)
  return type(length) == 'number' and length or 0
end

-- The field stands behind the payload and the headers, and no text behind it can hold its name.
local function produced_at(body)
  if not body then return end
  bytes = bytes + #body
  for n = 1, #tails do
    local at, from = nil, -tails[n]
    repeat  -- to the last one, by plain finds: a pattern would try every byte of the tail
      local _, last = string.find(body, '"created_at":', from, true)
      at, from = last or at, last and last + 1
    until not last
    local found = at and string.match(body, '^[%d.]*', at + 1)
    if found or #body <= tails[n] then return tonumber(found) and found end
  end
end

-- The body of the first entry that a claim would deliver, if that is among the first 100.
local function first_of(topic, list, has_stale)
  if not has_stale then
    local id = redis.call('LINDEX', list, -1)
    return redis.call('HGET', payload, id)
  end
  local ids, processing = redis.call('LRANGE', list, -100, -1), prefix .. topic .. ':processing'
  for n = #ids, 1, -1 do
    local id = ids[n]
    local ours = redis.call('HGET', payload, id .. ':queue') == topic and redis.call('ZSCORE', monitor, id)
    local body = ours and redis.pcall('HEXISTS', processing, id) == 0 and redis.call('HGET', payload, id)
    if body then return body end
  end
end

local entries, oldest
local function look(topic, lane, has_stale)
  local list = prefix .. topic .. suffixes[lane]
  local count = number(redis.pcall('LLEN', list))
  if count > 0 then
    local first = produced_at(first_of(topic, list, has_stale))
    if first and (not oldest or tonumber(first) < tonumber(oldest)) then oldest = first end
  end
  entries = entries + count
end

local topics = batch(3, 2)
local block = 20  -- counters of so many topics are read together: a call costs more than they do

-- The counters of a block of topics, one topic behind the other.
local function read_counters(first, last)
  local fields, size = {}, 0
  for n = first, last do
    local topic, endings = topics[n], asked(n).endings
    for m = 1, #endings do fields[size + m] = topic .. endings[m] end
    size = size + #endings
  end
  return redis.pcall('HMGET', counters, unpack(fields))
end

local cells, size, counted, at = {}, 0, nil, 0
for n, topic in ipairs(topics) do
  if bytes >= reply_bytes then break end
  if n % block == 1 then counted, at = read_counters(n, math.min(n + block - 1, #topics)), 0 end
  local set, expected = asked(n), 0  -- expected: live messages and stale entries, nil if a counter cannot be read
  local width = #set.endings
  for m = 1, width do
    local count = counted[at + m]
    cells[size + 3 + m] = count or false
    if count then expected = expected and tonumber(count) and expected + set.signs[m] * count end
  end

  local leases, has_stale = 0, set.stale and counted[at + set.stale]
  entries, oldest = 0, false
  look(topic, usual, has_stale)
  if entries ~= expected then  -- else all its messages are there, and the other places are empty
    for m = 1, #lanes do
      if lanes[m] ~= usual then look(topic, lanes[m], has_stale) end
    end
    leases = number(redis.pcall('HLEN', prefix .. topic .. ':processing'))
  end

  cells[size + 1], cells[size + 2], cells[size + 3] = entries, leases, oldest
  size, at = size + 3 + width, at + width
end
return cells
