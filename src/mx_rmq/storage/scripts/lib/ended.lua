-- What became of a message is kept after its end if that was asked for, under a key that expires by itself.
-- A wish is 'remember_ms took_ms'. It is checked before the first write (I6): SET refuses a lifetime of 0.
local function wish_of(text)
  local remember_ms, took_ms = string.match(text, '^([1-9]%d*) (%d+)$')
  if not remember_ms or #text > 30 then error('BADARGS no end can be remembered for ' .. text, 0) end
  return { remember_ms = remember_ms, took_ms = took_ms }
end

local function note_end(prefix, id, how, now_ms, topic, wish)
  local text = how .. ' ' .. now_ms .. ' ' .. wish.took_ms .. ' ' .. topic
  redis.call('SET', prefix .. 'ended=' .. id, text, 'PX', wish.remember_ms)
end
