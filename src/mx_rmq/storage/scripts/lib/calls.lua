-- A producer's last call and its answer are remembered for a while, so that a call sent again
-- after a lost reply is answered, not repeated, even if its messages have long been completed (I5).
-- Its numbers grow: a lower one was held up on a connection that its producer has given up since. It
-- has been sent again and answered, or nobody waits for it any more.
local function answer_of(call_key, call)
  if call == '' then return nil end
  local memory = redis.call('GET', call_key)
  local said = memory and string.match(memory, '^(%d+) ')
  local last = said and #said <= 16 and tonumber(said)
  if last and (tonumber(call) or last) < last then
    error('BELATED call ' .. call .. ', this producer has come to ' .. last, 0)
  end
  if not memory or string.sub(memory, 1, #call + 1) ~= call .. ' ' then return nil end
  -- A WAIT behind this call is for what its connection wrote: without a write it would wait for nothing.
  redis.call('EXPIRE', call_key, call_memory_ms / 1000)
  local status = {}
  for code in string.gmatch(string.sub(memory, #call + 2), '%S+') do
    status[#status + 1] = tonumber(code)
  end
  return status
end

local function remember(call_key, call, status)
  if call ~= '' then
    redis.call('SET', call_key, call .. ' ' .. table.concat(status, ' '), 'PX', call_memory_ms)
  end
end
