-- A producer's last call and its answer are remembered for a while, so that a call sent again
-- after a lost reply is answered, not repeated, even if its messages have long been completed (I5).
-- A producer's call numbers grow. A lower one was delayed on a connection that the producer has closed
-- since: the call has been sent again and answered, or its caller has given up.
local function answer_of(call_key, call)
  if call == '' then return nil end
  local memory = redis.call('GET', call_key)
  local said = memory and string.match(memory, '^(%S+) ')
  if said ~= call then
    local last = said and #said <= 16 and string.find(said, '^%d+$') and tonumber(said)
    if last and (tonumber(call) or last) < last then
      error('BELATED call ' .. call .. ', this producer has come to ' .. last, 0)
    end
    return nil
  end
  -- A WAIT behind this call waits for the connection's last write. Without a write here it would return
  -- at once.
  redis.call('EXPIRE', call_key, call_memory_ms / 1000)
  local status = {}
  for code in string.gmatch(string.sub(memory, #call + 2), '%S+') do
    status[#status + 1] = tonumber(code)
  end
  return status
end

-- `codes`: the answer as text, separated by spaces.
local function remember(call_key, call, codes)
  if call ~= '' then redis.call('SET', call_key, call .. ' ' .. codes, 'PX', call_memory_ms) end
end
