-- Whether this may be the name of a topic or the id of a message; mx-rmq writes no others.
local function is_name(text)
  return #text <= 128 and string.find(text, '^[%w_.-]+$') == 1
end
