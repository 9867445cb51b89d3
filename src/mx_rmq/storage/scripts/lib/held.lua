-- Compares the tokens of a call with the current leases (I3, I4). Ids are at ARGV[first],
-- ARGV[first + step], …, each followed by its token.
-- Returns the ids, per id 1 held | 0 stale | -1 gone, and the leases.
local find, byte = string.find, string.byte

local function held(payload, processing, first, step)
  local ids, status, seen = batch(first, step), {}, {}
  if #ids == 0 then return ids, status, {} end
  redis.call('HLEN', payload)
  local leases = redis.call('HMGET', processing, unpack(ids))
  for n = 1, #ids do
    local id, lease, token = ids[n], leases[n], ARGV[first + (n - 1) * step + 1]
    -- The token is the lease's first word. It is compared in place: creating a string costs more.
    if lease and not seen[id] and find(lease, token, 1, true) == 1 and byte(lease, #token + 1) == 32 then
      status[n], seen[id] = 1, true
    elseif lease or redis.call('HEXISTS', payload, id) == 1 then
      status[n] = 0
    else
      status[n] = -1
    end
  end
  return ids, status, leases
end
