-- carry_done: ids that stay taken on a shard of an older generation stay taken here.
-- KEYS     1 done zset
-- ARGV     per message: id, until_ms; now_us
-- Returns  per message: 1 carried | 0 it stays taken as long or longer
-- Keeps    I5 I6 I8
-- Uses     limits batch
local done = KEYS[1]

local ids, status = batch(1, 2), {}
if #ids == 0 then return status end
local known = redis.call('ZMSCORE', done, unpack(ids))
-- Removes nothing, but lets the next write pass when memory is full; see lib/relieve.lua.
redis.call('ZREM', done, '')
for n = 1, #ids do
  local until_ms = ARGV[n * 2]
  if #until_ms > 16 or not string.find(until_ms, '^%d+$') then error('BADARGS ' .. until_ms, 0) end
end
for n = 1, #ids do
  local later = tonumber(known[n] or 0) < tonumber(ARGV[n * 2])
  if later then redis.call('ZADD', done, ARGV[n * 2], ids[n]) end
  status[n] = later and 1 or 0
end
return status
