-- The times that a worker measured: '3:5 30:15' is 5 times in bucket 3 and 15 in bucket 30. Run times have the
-- first spread_buckets buckets, waiting times the others. Read before the first write (I6).
-- Returns for each the words by which BITFIELD adds it to a spread; nil for no times.
local function spread_of(text)
  if text == '' then return nil end
  local spread, n, read = {}, 0, 0
  for bucket, times, gap in string.gmatch(text, '(%d+):(%d+)( ?)') do
    if #times > 4 or tonumber(bucket) >= 2 * spread_buckets or n >= 8 * spread_buckets then read = -#text end
    spread[n + 1], spread[n + 2], spread[n + 3], spread[n + 4] = 'INCRBY', 'u24', '#' .. bucket, times
    n, read = n + 4, read + #bucket + #times + #gap + 1
  end
  if read ~= #text then error('BADARGS no times are in ' .. string.sub(text, 1, 30), 0) end
  return spread
end
