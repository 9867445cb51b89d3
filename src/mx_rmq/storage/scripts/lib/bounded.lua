-- The caller's limit, kept between 0 and `most_messages`: in the server's range commands a negative
-- limit means "all".
local function bounded(limit)
  return math.max(0, math.min(tonumber(limit), most_messages))
end
