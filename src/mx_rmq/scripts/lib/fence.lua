-- The fence of this call, the second half of its tokens: the time in µs, but always more than the
-- last one that was given, so that it grows even if the clock is stepped back. Ids in one call are
-- distinct, so they share it. Text that is no fence, or has no next one below 2^53, counts for nothing.
local function next_fence(key, now_us)
  local last = redis.pcall('GET', key)
  last = type(last) == 'string' and #last <= 16 and string.find(last, '^%d+$') and tonumber(last) or 0
  if last >= 9007199254740991 then last = 0 end
  return math.max(now_us, last + 1)
end
