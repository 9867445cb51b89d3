-- The history: how often things happened, by topic and minute. It is for people: a broken sheet must never
-- stop a message, hence pcall.
-- A sheet is a string of numbers of 24 bits, for one topic and sheet_minutes minutes. It has its full size from
-- the start, so that it is known beforehand how much the history can take.
--   history=<number>=<topic>  the spread of the whole sheet, then for every minute a number per event
--   recent=<number>=<topic>   for every minute a spread; see lib/spread.lua
--   history=<number>          set of the topics that have a sheet; further ones are counted together, as '*'
local spread_buckets = 28  -- of run times, and as many of waiting times

-- Adds to a sheet. Returns the server's reply: the new number of this event comes first.
local function add_to(sheet, into, amount, spread)
  if not spread then
    return redis.pcall('BITFIELD', sheet, 'OVERFLOW', 'SAT', 'INCRBY', 'u24', into, amount)
  end
  return redis.pcall('BITFIELD', sheet, 'OVERFLOW', 'SAT', 'INCRBY', 'u24', into, amount, unpack(spread))
end

-- Counts an event of a topic, and the spread that came with it. `history`: '' to count nothing, or else the
-- prefix of the queue's keys. The constants are in here, where they cost a call nothing.
local function note(history, topic, now_us, event, amount, spread)
  local sheet_minutes = 20
  local history_events = 'pdcrolFCERUI?'
  local history_topics = 200
  local history_seconds, recent_seconds = 266400, 9000
  if history == '' or amount == 0 then return end
  local minute = math.floor(now_us / 60000000)
  local within = minute % sheet_minutes
  local number = (minute - within) / sheet_minutes
  local place = 2 * spread_buckets + within * #history_events + string.find(history_events, event, 1, true) - 1
  local sheets, into = history .. 'history=' .. number, '#' .. place
  local sheet, name = sheets .. '=' .. topic, topic
  local said = add_to(sheet, into, amount, spread)
  if said.err then return end
  -- A missing sheet had no such event in this minute. The server has made one that is too short and would not
  -- expire; it is made anew, or removed if there are enough sheets.
  if said[1] == tonumber(amount) then
    local size = (sheet_minutes * #history_events + 2 * spread_buckets) * 3
    if redis.call('STRLEN', sheet) < size then
      local topics = redis.pcall('SCARD', sheets)
      if type(topics) == 'number' and topics < history_topics then
        redis.pcall('SADD', sheets, topic)
        redis.pcall('EXPIRE', sheets, history_seconds)
      else
        redis.call('DEL', sheet)
        sheet, name = sheets .. '=*', '*'
      end
      local length = redis.pcall('STRLEN', sheet)
      if type(length) ~= 'number' then return end
      if length < size then redis.call('SET', sheet, string.rep('\0', size), 'EX', history_seconds) end
      add_to(sheet, into, amount, spread)
    end
  end
  if not spread then return end
  local key, first = history .. 'recent=' .. number .. '=' .. name, within * 2 * spread_buckets
  if redis.pcall('STRLEN', key) == 0 then
    redis.pcall('SET', key, string.rep('\0', sheet_minutes * 2 * spread_buckets * 3), 'EX', recent_seconds)
  end
  for n = 3, #spread, 4 do spread[n] = '#' .. first + string.sub(spread[n], 2) end
  redis.pcall('BITFIELD', key, 'OVERFLOW', 'SAT', unpack(spread))
end
