-- read_dlq: reads those dead messages that match, as many as fit into a reply.
-- KEYS     1 dlq zset   2 dlq_payload hash
-- ARGV     topic, group, word, what; per message: id; now_us
--          (topic, group: '' for any; word: '' or a text that the error has, as it is stored;
--          what: 'ids' | 'errors' | 'bodies' | 'all', each with id, died_ms and topic)
-- Returns  how many ids were looked at; then per match: id, died_ms, topic, error, group, body
--          ('' for what there is not, or was not asked for)
-- Keeps    I8; reads only
-- Uses     limits batch
local dlq, dlq_payload = KEYS[1], KEYS[2]
local topic, group, word, what = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local wants_bodies = what == 'bodies' or what == 'all'
local wants_errors = what == 'errors' or what == 'all'

redis.call('ZCARD', dlq)
redis.call('HLEN', dlq_payload)
local ids = batch(5, 1)
if #ids == 0 then return { 0 } end

-- One part of every message.
local function all(part)
  local labels = {}
  for n = 1, #ids do labels[n] = ids[n] .. part end
  return redis.call('HMGET', dlq_payload, unpack(labels))
end
local scores, topics = redis.call('ZMSCORE', dlq, unpack(ids)), all(':queue')
local groups = (group ~= '' or what == 'all') and all(':group') or {}
local errors = (word ~= '' or wants_errors) and all(':error') or {}

-- Of an entry without topic, body and error nothing is left but its place in the DLQ.
local function is_message(n)
  return (topics[n] or '') ~= ''
    or redis.call('HEXISTS', dlq_payload, ids[n]) == 1
    or redis.call('HSTRLEN', dlq_payload, ids[n] .. ':error') > 0
end
local matches, found = {}, 0
for n = 1, #ids do
  local meant = scores[n] and (topic == '' or topic == topics[n]) and (group == '' or group == groups[n])
  if meant and is_message(n) and (word == '' or string.find(errors[n] or '', word, 1, true)) then
    found = found + 1
    matches[found] = n
  end
end

-- The body of a match. A call costs more than a small body, so after small ones some are read together.
-- Large ones are read one by one: what does not fit into the reply is read in vain.
local bodies, first, last, some = {}, 1, 0, 1
local function body_of(match)
  if match > last then
    local asked = {}
    first, last = match, math.min(match + some - 1, found)
    for m = first, last do asked[m - first + 1] = ids[matches[m]] end
    bodies = redis.call('HMGET', dlq_payload, unpack(asked))
  end
  local body = bodies[match - first + 1] or ''
  some = #body < 4096 and math.min(some * 2, 8) or 1
  return body
end

local answer, cells, size = { #ids }, 1, 0
for m = 1, found do
  local n = matches[m]
  local why, body = wants_errors and errors[n] or '', wants_bodies and body_of(m) or ''
  size = size + #why + #body
  if size > reply_bytes and cells > 1 then
    answer[1] = n - 1
    break
  end
  answer[cells + 1], answer[cells + 2], answer[cells + 3] = ids[n], scores[n], topics[n] or ''
  answer[cells + 4], answer[cells + 5], answer[cells + 6] = why, groups[n] or '', body
  cells = cells + 6
end
return answer
