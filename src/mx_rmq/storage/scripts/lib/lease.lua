-- A lease is "count@fence lane expires_ms holder cause"; the token is its first word.
-- What must outlive it (how often the message was leased, its lane, its expiry) is "kept".
local function kept(lease)
  local leased, lane, expires = string.match(lease, '^(%d+)@%S+ (%S+) (%S+)')
  return leased_before(leased), lane or 'normal', instant(expires)
end
