-- Checks that produce_* makes before it stores anything: the lane and the body size of every message,
-- and whether its id is taken. Messages are at ARGV[first], ARGV[first + step], …: id, lane, …, body.
-- Returns the ids, per id 1 free | 0 live | -1 dead | -2 done and still remembered, and the same codes as text:
-- the server takes long to write a number, and a call is remembered as text.
-- A sealed shard takes no new messages: the seal is a member of `done` that no id can be.
local function admit(payload, dlq, done, first, step, max_bytes, now_ms)
  local ids, status, codes, seen = batch(first, step), {}, {}, {}
  if #ids == 0 then return ids, status, codes end
  for n = 1, #ids do
    local id, at = ids[n], first + (n - 1) * step
    local lane, size = ARGV[at + 1], #ARGV[at + step - 1]
    if not suffixes[lane] then error('BADLANE ' .. lane .. ' of message ' .. id, 0) end
    if size > max_bytes then
      error('TOOLARGE message ' .. id .. ' has ' .. size .. ' bytes, the limit is ' .. max_bytes, 0)
    end
  end
  local bodies = redis.call('HMGET', payload, unpack(ids))
  -- Usually no message is dead and no id is remembered; then there is nothing to look up.
  local deaths = redis.call('ZCARD', dlq) > 0 and redis.call('ZMSCORE', dlq, unpack(ids)) or {}
  local memories = redis.call('ZCARD', done) > 0 and redis.call('ZMSCORE', done, '=sealed', unpack(ids)) or {}
  if memories[1] then error('SEALED the shard takes no new messages', 0) end
  for n = 1, #ids do
    local id = ids[n]
    if bodies[n] or seen[id] then
      status[n], codes[n] = 0, '0'
    elseif deaths[n] then
      status[n], codes[n] = -1, '-1'
    elseif memories[n + 1] and tonumber(memories[n + 1]) > now_ms then
      status[n], codes[n] = -2, '-2'
    else
      status[n], codes[n], seen[id] = 1, '1', true
    end
  end
  return ids, status, codes
end
