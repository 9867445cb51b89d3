-- A number as plain digits: Lua's tostring() turns µs since 1970 into 1.76e+15.
local function digits(number)
  return string.format('%.0f', number)
end
