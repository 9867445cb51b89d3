-- note_act: notes what an operator did; the trail keeps the latest notes.
-- KEYS     1 trail list
-- ARGV     act, most; now_us
-- Returns  how many notes there are
-- Keeps    I7 I8
-- Uses     clock digits
local trail = KEYS[1]
local act, most = ARGV[1], tonumber(ARGV[2])

redis.call('LTRIM', trail, 0, most - 2) -- first: with maxmemory reached, a script may write after a removal
return redis.call('LPUSH', trail, digits(math.floor(clock() / 1000)) .. ' ' .. act)
