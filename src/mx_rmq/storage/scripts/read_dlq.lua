-- read_dlq: reads those dead messages that match, as many as fit into a reply.
-- KEYS     1 dlq zset   2 dlq_payload hash
-- ARGV     topic, group, word, what; per message: id; now_us
--          (topic, group: '' for any; word: '' or a text that the error has, as it is stored;
--          what: 'ids' | 'errors' | 'bodies', each with those before it)
-- Returns  how many ids were looked at; then per match: id, died_ms, topic, error, group, body
--          ('' for what there is not, or was not asked for)
-- Keeps    I8; reads only
-- Uses     limits batch
local dlq, dlq_payload = KEYS[1], KEYS[2]
local topic, group, word, what = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('ZCARD', dlq)
redis.call('HLEN', dlq_payload)
local ids, labels = batch(5, 1), {}
if #ids == 0 then return { 0 } end
for n = 1, #ids do
  local id = ids[n]
  labels[n * 3 - 2], labels[n * 3 - 1], labels[n * 3] = id .. ':queue', id .. ':group', id .. ':error'
end
local scores = redis.call('ZMSCORE', dlq, unpack(ids))
local stored = redis.call('HMGET', dlq_payload, unpack(labels))

local answer, cells, size = { #ids }, 1, 0
for n = 1, #ids do
  local id, of, member, why = ids[n], stored[n * 3 - 2] or '', stored[n * 3 - 1] or '', stored[n * 3] or ''
  local meant = scores[n] and (topic == '' or topic == of) and (group == '' or group == member)
  -- Of an entry without any of these nothing is left but its place in the DLQ.
  local here = meant and (of ~= '' or why ~= '' or redis.call('HEXISTS', dlq_payload, id) == 1)
  if here and (word == '' or string.find(why, word, 1, true)) then
    local body = what == 'bodies' and redis.call('HGET', dlq_payload, id) or ''
    if what == 'ids' then why = '' end
    size = size + #why + #body
    if size > reply_bytes and cells > 1 then
      answer[1] = n - 1
      break
    end
    answer[cells + 1], answer[cells + 2], answer[cells + 3] = id, scores[n], of
    answer[cells + 4], answer[cells + 5], answer[cells + 6] = why, member, body
    cells = cells + 6
  end
end
return answer
