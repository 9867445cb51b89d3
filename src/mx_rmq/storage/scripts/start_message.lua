-- start_message: notes in its lease that a message, held by a vanished worker before, is about to run.
-- If this worker vanishes too, the message is blamed. It is not blamed while it only waits in a worker.
-- KEYS     1 payload hash   2 processing hash
-- ARGV     per delivery: id, token; now_us
-- Returns  per delivery: 1 noted | 0 stale | -1 gone
-- Keeps    I3 I4 I5 I6
-- Uses     limits batch held relieve
local payload, processing = KEYS[1], KEYS[2]
local ids, status, leases = held(payload, processing, 1, 2)
local started = {}
for n, id in ipairs(ids) do
  if status[n] == 1 then
    started[#started + 1] = id
    started[#started + 1] = (string.gsub(leases[n], ' run$', ' started'))
  end
end
if #started > 0 then
  relieve(processing)
  redis.call('HSET', processing, unpack(started))
end
return status
