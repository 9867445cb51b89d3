-- The ids of a call, which stand at ARGV[first], ARGV[first + step], …; at most 1,000 of them, since
-- Lua's unpack() fails at about 8,000 values and would do so in mid-script (I6, I8).
local function batch(first, step)
  local ids = {}
  for i = first, #ARGV - 1, step do ids[#ids + 1] = ARGV[i] end
  if #ids > 1000 then error('TOOMANY ' .. #ids .. ' messages in one call, the limit is 1000', 0) end
  if (#ARGV - first) % step ~= 0 then error('BADARGS the last message is incomplete', 0) end
  return ids
end
