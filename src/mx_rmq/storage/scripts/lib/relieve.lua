-- With maxmemory reached, the server refuses a growing write only while a script has written nothing.
-- A removal counts, even of nothing: it lets scripts that must always work (leases, recovery) pass.
local function relieve(hash)
  redis.call('HDEL', hash, '')
end
