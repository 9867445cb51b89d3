-- The fence of this call, the second half of its tokens: the time in µs, but always more than the
-- last fence, so that it grows even if the clock is stepped back. Ids in one call are distinct, so
-- they share it. Stored text that is no fence, or has no next one below 2^53, is ignored.
-- The fence is written at once, so a removal must come before it; see lib/relieve.lua.
local function next_fence(key, now_us)
  local given = digits(now_us)
  local said = redis.pcall('SET', key, given, 'GET')
  local last = type(said) == 'string' and #said <= 16 and string.find(said, '^%d+$') and tonumber(said)
  if type(said) == 'table' then
    redis.call('SET', key, given)  -- in place of a value of another type
  elseif last and last >= now_us and last < 9007199254740991 then
    given = digits(last + 1)
    redis.call('SET', key, given)
  end
  return given
end
