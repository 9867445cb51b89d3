-- The server's clock in µs, read once. Tests set the time by passing it as the last argument.
local function clock()
  local given = ARGV[#ARGV]
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
