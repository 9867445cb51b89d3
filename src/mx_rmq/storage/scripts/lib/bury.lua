-- Deletes dead messages for good. Returns how many there were.
local function bury(dlq, dlq_payload, counters, ids)
  local deleted, tally = 0, {}
  for _, id in ipairs(ids) do
    if redis.call('ZREM', dlq, id) == 1 then
      local topic = redis.call('HGET', dlq_payload, id .. ':queue') or 'unknown'
      redis.call('HDEL', dlq_payload, id, id .. ':queue', id .. ':error')
      tally[topic] = (tally[topic] or 0) + 1
      deleted = deleted + 1
    end
  end
  for topic, amount in pairs(tally) do count(counters, topic, 'deleted', amount) end
  return deleted
end
