-- count_topics: reads for people how many messages topics have, each topic as it is at one instant.
-- KEYS     1 payload hash   2 all_expire_monitor zset   3 counters hash
-- ARGV     prefix, events; per topic: topic, rare; now_us
--          (events: the counters to read of every topic, rare: those to read of this one too; names
--          separated by spaces)
-- Returns  per topic: pending, leases, delayed, dead now, when the message next in line was produced (nil if
--          there is none or it cannot be read), and the counters produced, completed, retried, put_off,
--          lapsed and dead.
--          No further topics once reply_bytes of bodies were read; ask again for those
-- Keeps    I8; reads only
-- Uses     limits lanes batch
local payload, monitor, counters = KEYS[1], KEYS[2], KEYS[3]
local prefix, events = ARGV[1], ARGV[2]
local tails = {512, 4096, 131072}  -- bytes from the end of a body; the last one has room for any history
local bytes = 0
local call, pcall, match, tonumber = redis.call, redis.pcall, string.match, tonumber  -- a global takes longer

call('HLEN', payload)
call('ZCARD', monitor)

-- How counters add up to the live messages and to the dead ones, and which cells they are returned in.
local live_signs = { produced = 1, replayed = 1, adjusted = 1, completed = -1, dead = -1, cancelled = -1 }
local dead_signs = { dead = 1, restored = 1, adjusted_dead = 1, replayed = -1, deleted = -1 }
local columns = { produced = 6, completed = 7, retried = 8, put_off = 9, lapsed = 10, dead = 11 }
local width = 11

-- Which counters to read of a topic, by the names of its rare ones. Most topics have the same.
local sets = {}
local function set_of(rare)
  local set = { endings = {}, live = {}, dead = {}, columns = {} }
  for name in string.gmatch(events .. ' ' .. rare, '%S+') do
    local m = #set.endings + 1
    set.endings[m], set.columns[m] = ':' .. name, columns[name] or false
    set.live[m], set.dead[m] = live_signs[name] or 0, dead_signs[name] or 0
    if name == 'stale' then set.stale = m end
  end
  sets[rare] = set
  return set
end

-- A counter; nil if another program wrote something else there.
local function whole(text)
  local count = tonumber(text)
  return count and count % 1 == 0 and math.abs(count) < 2 ^ 53 and count or nil
end

-- A length; 0 for the refusal of a key of another type.
local function number(length)
  return type(length) == 'number' and length or 0
end

-- The field stands behind the payload and the headers, and no text behind it can hold its name.
local function produced_at(body)
  if not body then return end
  bytes = bytes + #body
  local found = match(body, '^.*"created_at":([%d.]*)', -128)
  if found then return tonumber(found) and found end
  for n = 1, #tails do
    local at, from = nil, -tails[n]
    repeat  -- to the last one, by plain finds: in a long tail a pattern would try every byte
      local _, last = string.find(body, '"created_at":', from, true)
      at, from = last or at, last and last + 1
    until not last
    found = at and match(body, '^[%d.]*', at + 1)
    if found or #body <= tails[n] then return tonumber(found) and found end
  end
end

-- The body of the first entry that a claim would deliver, if that is among the first 100.
local function first_of(topic, list, has_stale)
  if not has_stale then
    local id = call('LINDEX', list, -1)
    return call('HGET', payload, id)
  end
  local ids, processing = call('LRANGE', list, -100, -1), prefix .. topic .. ':processing'
  for n = #ids, 1, -1 do
    local id = ids[n]
    local ours = call('HGET', payload, id .. ':queue') == topic and call('ZSCORE', monitor, id)
    local body = ours and pcall('HEXISTS', processing, id) == 0 and call('HGET', payload, id)
    if body then return body end
  end
end

local entries, oldest
local function look(topic, lane, has_stale)
  local list = prefix .. topic .. suffixes[lane]
  local count = number(pcall('LLEN', list))
  if count > 0 then
    local first = produced_at(first_of(topic, list, has_stale))
    if first and (not oldest or tonumber(first) < tonumber(oldest)) then oldest = first end
  end
  entries = entries + count
end

local topics = batch(3, 2)
local block = 20  -- counters of so many topics are read together: a call costs more than they do
local asked = {}  -- the sets of the topics

-- The counters of a block of topics, one topic behind the other.
local function read_counters(first, last)
  local fields, size = {}, 0
  for n = first, last do
    local rare = ARGV[3 + (n - 1) * 2 + 1]
    local topic, set = topics[n], sets[rare] or set_of(rare)
    local endings = set.endings
    for m = 1, #endings do fields[size + m] = topic .. endings[m] end
    asked[n], size = set, size + #endings
  end
  return pcall('HMGET', counters, unpack(fields))
end

local cells, size, counted, at = {}, 0, nil, 0
for n, topic in ipairs(topics) do
  if bytes >= reply_bytes then break end
  if n % block == 1 then counted, at = read_counters(n, math.min(n + block - 1, #topics)), 0 end
  for m = 1, width do cells[size + m] = 0 end
  local set, live, dead, readable = asked[n], 0, 0, true
  for m = 1, #set.endings do
    local text = counted[at + m]
    local count = text and whole(text)
    if count then
      live, dead = live + set.live[m] * count, dead + set.dead[m] * count
      if set.columns[m] then cells[size + set.columns[m]] = count end
    elseif text then
      readable = false
    end
  end

  local leases, stale_text = 0, set.stale and counted[at + set.stale]
  local stale = stale_text and math.max(0, whole(stale_text) or 0) or 0
  entries, oldest = 0, false
  look(topic, usual, stale_text)
  if not readable or entries ~= live + stale then  -- else all are there, and the other places are empty
    for m = 1, #lanes do
      if lanes[m] ~= usual then look(topic, lanes[m], stale_text) end
    end
    leases = number(pcall('HLEN', prefix .. topic .. ':processing'))
  end

  local pending = math.max(0, entries - stale)
  cells[size + 1], cells[size + 2], cells[size + 3] = pending, leases, math.max(0, live - pending - leases)
  cells[size + 4], cells[size + 5] = math.max(0, dead), oldest
  size, at = size + width, at + #set.endings
end
return cells
