-- forget_topics: forgets topics that have been empty, not paused and unused for idle_ms, with their counters.
-- A look notes how many events a topic has had. It is unused as long as the next looks find the same number.
-- KEYS     1 topics set   2 paused set   3 counters hash
-- ARGV     prefix, events, idle_ms; per topic: topic; now_us
--          (events: the counters that only grow, separated by spaces)
-- Returns  the topics forgotten
-- Keeps    I6 I7 I8
-- Uses     limits lanes clock digits batch relieve
local topics, paused, counters = KEYS[1], KEYS[2], KEYS[3]
local prefix, events, idle_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now_ms = math.floor(clock() / 1000)
local names = {}
for name in string.gmatch(events, '%S+') do names[#names + 1] = name end
local grow = #names
for _, name in ipairs({ 'adjusted', 'adjusted_dead', 'stale', 'idle_total', 'idle_since' }) do
  names[#names + 1] = name
end

-- Whether nothing of the topic is in a list or leased; a key of another type may hold anything.
local function is_empty(topic)
  for _, lane in ipairs(lanes) do
    if redis.pcall('LLEN', prefix .. topic .. suffixes[lane]) ~= 0 then return false end
  end
  return redis.pcall('HLEN', prefix .. topic .. ':processing') == 0
end

local noted, forgotten = {}, {}
for _, topic in ipairs(batch(4, 1)) do
  local fields, of, total = {}, {}, 0
  for n = 1, #names do fields[n] = topic .. ':' .. names[n] end
  local is_paused = redis.call('SISMEMBER', paused, topic) == 1
  local counted = redis.pcall('HMGET', counters, unpack(fields))
  local known = redis.pcall('SISMEMBER', topics, topic) == 1 and not counted.err
  for n = 1, known and #names or 0 do
    of[names[n]] = tonumber(counted[n] or 0) or math.huge  -- text that is no number makes no sum
    if n <= grow then total = total + of[names[n]] end
  end
  if known and not is_paused and total < math.huge and is_empty(topic) then
    local live = of.produced + of.replayed + of.adjusted - of.completed - of.dead - of.cancelled
    local dead = of.dead + of.restored + of.adjusted_dead - of.replayed - of.deleted
    if not counted[grow + 4] or of.idle_total ~= total or of.idle_since > now_ms then
      noted[#noted + 1] = fields[grow + 4]
      noted[#noted + 1] = digits(total)
      noted[#noted + 1] = fields[grow + 5]
      noted[#noted + 1] = now_ms
    elseif live == 0 and dead == 0 and now_ms - of.idle_since >= idle_ms then
      forgotten[topic] = fields
    end
  end
end

local names_forgotten = {}
for topic, fields in pairs(forgotten) do
  redis.call('HDEL', counters, unpack(fields))
  redis.pcall('SREM', topics, topic)
  names_forgotten[#names_forgotten + 1] = topic
end
if #noted > 0 then
  relieve(counters)
  redis.call('HSET', counters, unpack(noted))
end
return names_forgotten
