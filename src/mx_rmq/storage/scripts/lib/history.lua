-- The history: how often things happened, by topic and minute. It is for people: a broken sheet must never
-- stop a message, hence pcall.
-- A sheet is a string of numbers of 24 bits, for one topic and sheet_minutes minutes. It has its full size from
-- the start, so that it is known beforehand how much the history can take.
--   history=<number>=<topic>  the spread of the whole sheet, then for every minute a number per event
--   recent=<number>=<topic>   for every minute a spread; see lib/spread.lua
--   history=<number>          set of the topics that have a sheet; further ones are counted together, as '*'
local sheet_minutes = 20
local history_events = 'pdcrolFCERUI?'
local spread_buckets = 28  -- of run times, and as many of waiting times
local history_topics = 200
local history_seconds, recent_seconds = 266400, 9000

-- The name under which a topic is counted: its own, or '*'. Its sheet is made if need be. nil if another
-- program has written there.
local function sheet_for(history, number, topic)
  local key = history .. 'history=' .. number .. '=' .. topic
  local size = (sheet_minutes * #history_events + 2 * spread_buckets) * 3
  local length = redis.pcall('STRLEN', key)
  if length == size then return topic end
  if length ~= 0 then return nil end
  if topic ~= '*' then
    local index = history .. 'history=' .. number
    local topics = redis.pcall('SCARD', index)
    if type(topics) ~= 'number' or topics >= history_topics then return sheet_for(history, number, '*') end
    redis.pcall('SADD', index, topic)
    redis.pcall('EXPIRE', index, history_seconds)
  end
  redis.pcall('SET', key, string.rep('\0', size), 'EX', history_seconds)
  return topic
end

-- Counts an event of a topic, and the spread that came with it. `history`: '' to count nothing, or else the
-- prefix of the queue's keys.
local function note(history, topic, now_us, event, amount, spread)
  if history == '' or amount == 0 then return end
  local minute = math.floor(now_us / 60000000)
  local within = minute % sheet_minutes
  local number = (minute - within) / sheet_minutes
  local name = sheet_for(history, number, topic)
  if not name then return end
  local tail = number .. '=' .. name
  local place = 2 * spread_buckets + within * #history_events + string.find(history_events, event, 1, true) - 1
  local sheet, into = history .. 'history=' .. tail, '#' .. place
  if not spread then
    redis.pcall('BITFIELD', sheet, 'OVERFLOW', 'SAT', 'INCRBY', 'u24', into, amount)
    return
  end
  redis.pcall('BITFIELD', sheet, 'OVERFLOW', 'SAT', 'INCRBY', 'u24', into, amount, unpack(spread))
  local key, first = history .. 'recent=' .. tail, within * 2 * spread_buckets
  if redis.pcall('STRLEN', key) == 0 then
    redis.pcall('SET', key, string.rep('\0', sheet_minutes * 2 * spread_buckets * 3), 'EX', recent_seconds)
  end
  for n = 3, #spread, 4 do spread[n] = '#' .. first + string.sub(spread[n], 2) end
  redis.pcall('BITFIELD', key, 'OVERFLOW', 'SAT', unpack(spread))
end
