-- Replaces the value of KEYS[1], if it is the old value.
-- ARGV: "1" and the old value, or "0" and "" for none; the same for the new value; the TTL in ms, 0 for none.
local current = redis.pcall('GET', KEYS[1])
if type(current) == 'table' then current = false end -- of another type: counts as missing, as for MGET
if ARGV[1] == '1' then
	if current ~= ARGV[2] then return 0 end
elseif current then
	return 0
end
-- DEL comes first: Redis checks for free memory only before the first write of a script, and small values must be stored.
redis.call('DEL', KEYS[1])
if ARGV[3] == '1' then
	if ARGV[5] == '0' then
		redis.call('SET', KEYS[1], ARGV[4])
	else
		redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
	end
end
return 1
