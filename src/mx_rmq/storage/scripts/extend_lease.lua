-- extend_lease: gives every delivery that is still held a new deadline.
-- KEYS     1 payload hash   2 processing hash   3 all_expire_monitor zset
-- ARGV     lease_ms; per delivery: id, token; now_us
-- Returns  per delivery: 1 extended | 0 stale | -1 gone
-- Keeps    I3 I4 I5 I6 I7
-- Uses     limits clock batch held relieve
local payload, processing, monitor = KEYS[1], KEYS[2], KEYS[3]
local lease_ms = tonumber(ARGV[1])
local ends = math.floor(clock() / 1000) + lease_ms

redis.call('ZCARD', monitor)
local ids, status = held(payload, processing, 2, 2)
local deadlines = {}
for n, id in ipairs(ids) do
  if status[n] == 1 then
    deadlines[#deadlines + 1] = ends
    deadlines[#deadlines + 1] = id
  end
end
if #deadlines > 0 then
  relieve(processing)
  redis.call('ZADD', monitor, unpack(deadlines))
end
return status
