-- The lanes of a topic, the most urgent first, and the suffix of each lane's key. No script needs all
-- of this, hence the exception for luacheck.
-- luacheck: push ignore 211
local lanes = { 'high', 'normal', 'low' }
local usual = 'normal'
local suffixes = { high = ':pending:high', normal = ':pending', low = ':pending:low' }

-- The lists by lane; their keys are next to each other, from KEYS[first] on.
local function lists_at(first)
  return { high = KEYS[first], normal = KEYS[first + 1], low = KEYS[first + 2] }
end
-- luacheck: pop
