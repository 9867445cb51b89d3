-- Deletes dead messages for good: ids of the DLQ, each once. Returns how many there were.
local function bury(dlq, dlq_payload, dlq_groups, counters, ids)
  if #ids == 0 then return 0 end
  local labels, fields, tally, left = {}, {}, {}, {}
  for n = 1, #ids do
    local id = ids[n]
    labels[n * 2 - 1], labels[n * 2] = id .. ':queue', id .. ':group'
    fields[n * 4 - 3], fields[n * 4 - 2], fields[n * 4 - 1] = id, labels[n * 2 - 1], labels[n * 2]
    fields[n * 4] = id .. ':error'
  end
  local stored = redis.call('HMGET', dlq_payload, unpack(labels))
  for n = 1, #ids do
    local topic, group = stored[n * 2 - 1] or 'unknown', stored[n * 2]
    tally[topic] = (tally[topic] or 0) + 1
    if group then left[group] = (left[group] or 0) + 1 end
  end
  redis.call('ZREM', dlq, unpack(ids))
  redis.call('HDEL', dlq_payload, unpack(fields))
  for topic, amount in pairs(tally) do count(counters, topic, 'deleted', amount) end
  leave_groups(dlq_groups, left)
  return #ids
end
