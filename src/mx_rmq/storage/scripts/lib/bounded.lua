-- The caller's limit, kept between 0 and `most_messages`: to the server's ranges a negative one means
-- "all".
local function bounded(limit)
  return math.max(0, math.min(tonumber(limit), most_messages))
end
