-- The event of the history that a death is, by the reason in what is stored as its error.
local death_events = {
  failed = 'F', crashed = 'C', expired = 'E', rejected = 'R', unparsable = 'U', invalid = 'I',
}

local function death_of(said)
  return death_events[string.match(said, '^{"reason":"(%l+)"') or ''] or '?'
end
