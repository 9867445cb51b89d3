-- Whether this may be a topic or the id of a message; mx-rmq writes no others. The endings are those of
-- fields that a message has beside its body.
local function is_name(text)
  local ending = string.match(text, ':%l+$')
  return #text <= 128 and string.find(text, '^[%w_.:@/#+-]+$') == 1
    and ending ~= ':queue' and ending ~= ':keep' and ending ~= ':error' and ending ~= ':group'
end
