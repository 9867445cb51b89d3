-- release_message: a delivery that never started, or whose worker vanished, goes back to the head of its
-- lane.
-- KEYS     1 payload hash   2 processing hash   3 all_expire_monitor zset
--          4 pending:high list   5 pending list   6 pending:low list   7 wake list   8 counters hash
-- ARGV     topic; per delivery: id, token, body; now_us
--          (body: '' keeps the stored bytes)
-- Returns  per delivery: 1 done | 0 stale | -1 gone
-- Keeps    I1 I2 I3 I4 I5 I6
-- Uses     limits lanes count wake batch held instant leased lease
local payload, processing, monitor = KEYS[1], KEYS[2], KEYS[3]
local lists = lists_at(4)
local wake_list, counters = KEYS[7], KEYS[8]
local topic = ARGV[1]

redis.call('ZCARD', monitor)
for n = 4, 6 do redis.call('LLEN', KEYS[n]) end
local ids, status, leases = held(payload, processing, 2, 3)
local released, fields, deadlines, pushes = {}, {}, {}, {}
-- From the last to the first, so that the one claimed first ends up at the head.
for n = #ids, 1, -1 do
  local id = ids[n]
  if status[n] == 1 and redis.call('HEXISTS', payload, id) == 0 then status[n] = -1 end
  if status[n] == 1 then
    local leased, lane, expires = kept(leases[n])
    local body = ARGV[2 + (n - 1) * 3 + 2]
    local list = lists[lane] or lists.normal
    released[#released + 1] = id
    fields[#fields + 1] = id .. ':keep'
    fields[#fields + 1] = leased .. ' ' .. lane .. ' ' .. expires
    if body ~= '' then
      fields[#fields + 1] = id
      fields[#fields + 1] = body
    end
    deadlines[#deadlines + 1] = expires
    deadlines[#deadlines + 1] = id
    local push = pushes[list] or {}
    push[#push + 1] = id
    pushes[list] = push
  end
end
if #released > 0 then
  redis.call('HDEL', processing, unpack(released))
  redis.call('ZADD', monitor, unpack(deadlines))
  redis.call('HSET', payload, unpack(fields))
  for list, push in pairs(pushes) do redis.call('RPUSH', list, unpack(push)) end
  wake(wake_list)
  count(counters, topic, 'released', #released)
end
return status
