-- Numbers that several scripts, or a script and mx_rmq/limits.py, must agree on. No script needs them
-- all, hence the exception for luacheck.
-- luacheck: push ignore 211
-- Messages in one call, and list entries that one call looks at (I8). Lua's unpack() fails at about
-- 8,000 values, in mid-script (I6), and a message takes up to six of them.
local most_messages = 1000
-- Bytes of bodies after which a call reads no more bodies: a longer reply would stall the server.
local reply_bytes = 4194304
-- How long a produce call is remembered, to be answered if it is sent again (I5).
local call_memory_ms = 60000
-- How long a message is put off if its topic is missing or has a key of the wrong type (I8).
local put_off_ms = 60000
-- The longest time in a reply: a larger number would not be an integer of the protocol.
local most_ms = 1e15
-- luacheck: pop
