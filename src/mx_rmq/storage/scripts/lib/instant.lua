-- An instant in ms that ZADD accepts, or 'inf' for other text: an error of ZADD in mid-script would
-- leave messages in no place (I6). ZADD refuses a number of 400 digits too.
local function instant(text)
  return text and #text <= 20 and string.find(text, '^%d+%.?%d*$') and text or 'inf'
end
