-- The caller's limit, kept between 0 and 1,000 (I8): to the server's ranges a negative one means
-- "all", and past about 8,000 values Lua's unpack() fails in mid-script.
local function bounded(limit)
  return math.max(0, math.min(tonumber(limit), 1000))
end
