-- An instant in ms as the server takes it, or 'inf' for text that is none: an error of ZADD in
-- mid-script would leave messages in no place (I6). It refuses a number of 400 digits too.
local function instant(text)
  return text and #text <= 20 and string.find(text, '^%d+%.?%d*$') and text or 'inf'
end
