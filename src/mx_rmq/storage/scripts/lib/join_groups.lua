-- Dead messages are counted by group: those whose deaths have the same cause. The count of a group is the
-- number of ':group' fields in dlq_payload that name it. A group is given as 'id label'.
-- Groups are for people: a broken one must never stop a message, hence pcall.

-- Adds a message to the groups of this call. Returns the id of its group, nil if it has none.
local function tally_group(joined, group, died_ms)
  local id, label = string.match(group, '^(%x+) (.+)$')
  if not id then return nil end
  local of = joined[id] or { label = label, amount = 0, first_at = died_ms, last_at = died_ms }
  of.amount = of.amount + 1
  of.first_at, of.last_at = math.min(of.first_at, died_ms), math.max(of.last_at, died_ms)
  joined[id] = of
  return id
end

local function join_groups(dlq_groups, joined)
  for id, of in pairs(joined) do
    local told = redis.pcall('HMGET', dlq_groups, id .. ':first_at', id .. ':last_at', id .. ':label')
    local first_at, last_at = tonumber(told[1]) or of.first_at, tonumber(told[2]) or of.last_at
    redis.pcall('HINCRBY', dlq_groups, id .. ':count', of.amount)
    redis.pcall('HSET', dlq_groups, id .. ':label', told[3] or of.label,
      id .. ':first_at', math.min(first_at, of.first_at), id .. ':last_at', math.max(last_at, of.last_at))
  end
end
