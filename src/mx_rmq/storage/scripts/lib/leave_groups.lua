-- Subtracts messages that are dead no more from their groups: `left` is by the id of the group. A group
-- without messages is removed. A broken one must never stop a message, hence pcall; see lib/join_groups.lua.
local function leave_groups(dlq_groups, left)
  for id, amount in pairs(left) do
    local members = redis.pcall('HINCRBY', dlq_groups, id .. ':count', -amount)
    if type(members) == 'number' and members <= 0 then
      redis.pcall('HDEL', dlq_groups, id .. ':count', id .. ':label', id .. ':first_at', id .. ':last_at')
    end
  end
end
