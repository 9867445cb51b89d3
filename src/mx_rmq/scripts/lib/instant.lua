-- An instant in ms as the server takes it, or 'inf' for text that is none: an error of ZADD in
-- mid-script would leave messages in no place (I6).
local function instant(text)
  return text and string.find(text, '^%d+%.?%d*$') and text or 'inf'
end
