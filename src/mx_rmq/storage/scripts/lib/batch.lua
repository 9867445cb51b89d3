-- The ids of a call, at ARGV[first], ARGV[first + step], …
local function batch(first, step)
  local ids = {}
  for i = first, #ARGV - 1, step do ids[#ids + 1] = ARGV[i] end
  if #ids > most_messages then
    error('TOOMANY ' .. #ids .. ' messages in one call, the limit is ' .. most_messages, 0)
  end
  if (#ARGV - first) % step ~= 0 then error('BADARGS the last message is incomplete', 0) end
  return ids
end
