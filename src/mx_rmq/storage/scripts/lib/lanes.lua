-- The lanes of a topic, the most urgent first, and what the key of each one's list ends in. No script
-- needs all of this, hence the lint's exception.
-- luacheck: push ignore 211
local lanes = { 'high', 'normal', 'low' }
local suffixes = { high = ':pending:high', normal = ':pending', low = ':pending:low' }

-- The lists by lane, where they stand side by side from KEYS[first] on.
local function lists_at(first)
  return { high = KEYS[first], normal = KEYS[first + 1], low = KEYS[first + 2] }
end
-- luacheck: pop
