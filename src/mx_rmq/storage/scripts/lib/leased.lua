-- How often a message was leased, from its kept text. Text that is no count, or has too many digits for
-- Lua to write it as digits again, is 0: the rest of the token still tells leases apart.
local function leased_before(text)
  local leased = string.match(text or '', '^%d+')
  return leased and #leased <= 9 and leased or '0'
end
