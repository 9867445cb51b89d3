-- The times that a worker measured: 'r3:5 w2:15' is 5 run times in bucket 3 and 15 waiting times in bucket 2.
-- Read before the first write (I6). Returns per word the number of the bucket and how many times, nil for none.
local function spread_of(text)
  local spread
  for word in string.gmatch(text, '%S+') do
    local kind, bucket, times = string.match(word, '^([rw])(%d%d?):(%d%d?%d?%d?)$')
    bucket, times = tonumber(bucket), tonumber(times)
    spread = spread or {}
    if not kind or bucket >= spread_buckets or times > most_messages or #spread >= 4 * spread_buckets then
      error('BADARGS no times are in ' .. string.sub(word, 1, 30), 0)
    end
    spread[#spread + 1] = kind == 'r' and bucket or spread_buckets + bucket
    spread[#spread + 1] = times
  end
  return spread
end
