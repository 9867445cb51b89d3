-- note_vanished: notes that a worker vanished, once; the latest notes are kept.
-- KEYS     1 vanished hash
-- ARGV     worker, note, most; now_us
-- Returns  1 noted | 0 it was noted before
-- Keeps    I7 I8
-- Uses     clock digits relieve
local vanished = KEYS[1]
local worker, note, most = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('HEXISTS', vanished, worker) == 1 then return 0 end -- several workers may see it at once
relieve(vanished)
if redis.call('HLEN', vanished) >= most then
  local first, first_ms
  local notes = redis.call('HGETALL', vanished)
  for n = 1, #notes, 2 do
    local ms = tonumber(string.match(notes[n + 1], '^%d+')) or 0
    if first_ms == nil or ms < first_ms then first, first_ms = notes[n], ms end
  end
  redis.call('HDEL', vanished, first)
end
redis.call('HSET', vanished, worker, digits(math.floor(clock() / 1000)) .. ' ' .. note)
return 1
