-- Sets KEYS[1] for an owner. If the owner has too many bytes, its entries that expire first are dropped.
-- KEYS: the key; the owner's keys, sorted by expiry; their sizes, with the sum under "".
-- ARGV: the value; its TTL in ms; the owner's limit in bytes.
local key, ends, sizes = KEYS[1], KEYS[2], KEYS[3]
local ttl, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local size = #ARGV[1] + 256 -- with the overhead of an entry
local most_dropped = 2000 -- per call, so that other commands do not wait long

-- Written first: Redis checks for free memory only before the first write of a script.
if size <= most then
	redis.call('SET', key, ARGV[1], 'PX', ttl)
else
	redis.call('DEL', key)
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local total = tonumber(redis.pcall('HGET', sizes, '') or 0)
if not total or redis.pcall('ZRANGE', ends, 0, 0).err then -- not written by this script
	redis.call('DEL', ends, sizes)
	total = 0
end

local function forget(key)
	total = total - (tonumber(redis.call('HGET', sizes, key)) or 0)
	redis.call('HDEL', sizes, key)
	redis.call('ZREM', ends, key)
end

forget(key)
if size > most then size = 0 end
for _ = 1, most_dropped do
	local first = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')
	if not first[1] then
		redis.call('DEL', sizes)
		total = 0
		break
	end
	if total + size <= most and tonumber(first[2]) > now then break end
	redis.call('DEL', first[1])
	forget(first[1])
end
if size > 0 then
	redis.call('ZADD', ends, now + ttl, key)
	redis.call('HSET', sizes, key, size)
end
redis.call('HSET', sizes, '', total + size)
if redis.call('PTTL', sizes) < ttl then
	redis.call('PEXPIRE', sizes, ttl)
	redis.call('PEXPIRE', ends, ttl)
end
return 1
