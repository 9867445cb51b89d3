-- How often a message was leased, by the text that is kept of it. Text that is no count, or has more
-- digits than Lua would write as digits again, is 0: the rest of the token still tells leases apart.
local function leased_before(text)
  local leased = string.match(text or '', '^%d+')
  return leased and #leased <= 9 and leased or '0'
end
