-- read_dlq: reads those dead messages that match, as many as fit into a reply.
-- KEYS     1 dlq zset   2 dlq_payload hash
-- ARGV     topic, group, word, bodies; per message: id; now_us
--          (topic, group: '' for any; word: '' or a text that the error has, as it is stored; bodies: 1 to
--          read them, else 0)
-- Returns  how many ids were looked at; then per match: id, died_ms, topic, error, group, body
--          ('' for what there is not, or was not asked for)
-- Keeps    I8; reads only
-- Uses     limits batch
local dlq, dlq_payload = KEYS[1], KEYS[2]
local topic, group, word, bodies = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('ZCARD', dlq)
redis.call('HLEN', dlq_payload)
local ids, labels = batch(5, 1), {}
if #ids == 0 then return { 0 } end
for n = 1, #ids do labels[n * 2 - 1], labels[n * 2] = ids[n] .. ':queue', ids[n] .. ':group' end
local scores = redis.call('ZMSCORE', dlq, unpack(ids))
local stored = redis.call('HMGET', dlq_payload, unpack(labels))

local answer, size = { #ids }, 0
for n = 1, #ids do
  local id, of, member = ids[n], stored[n * 2 - 1] or '', stored[n * 2] or ''
  if scores[n] and (topic == '' or topic == of) and (group == '' or group == member) then
    local long = redis.call('HSTRLEN', dlq_payload, id)
    local why = redis.call('HGET', dlq_payload, id .. ':error') or ''
    -- Of an entry without any of these nothing is left but its place in the DLQ.
    local here = long > 0 or of ~= '' or why ~= ''
    if here and (word == '' or string.find(why, word, 1, true)) then
      size = size + #why + (bodies == '1' and long or 0)
      if size > reply_bytes and #answer > 1 then
        answer[1] = n - 1
        break
      end
      local m = #answer
      answer[m + 1], answer[m + 2], answer[m + 3] = id, scores[n], of
      answer[m + 4], answer[m + 5] = why, member
      answer[m + 6] = bodies == '1' and redis.call('HGET', dlq_payload, id) or ''
    end
  end
end
return answer
