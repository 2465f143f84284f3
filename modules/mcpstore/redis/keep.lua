-- Gives KEYS[1] a value, as one of an owner who loses those that would end first if it has too much.
-- KEYS: the key; the owner's keys, sorted by when they end; the sizes of these, and under "" their sum.
-- ARGV: the value; its TTL in ms; how many bytes the owner may have.
local key, ends, sizes = KEYS[1], KEYS[2], KEYS[3]
local ttl, most = tonumber(ARGV[2]), tonumber(ARGV[3])
local size = #ARGV[1] + 256 -- an entry takes more than its value
local most_dropped = 2000 -- at a time, so that other commands do not wait for long

-- First of all: Redis refuses for lack of memory only scripts that have not written yet.
if size <= most then
	redis.call('SET', key, ARGV[1], 'PX', ttl)
else
	redis.call('DEL', key)
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local total = tonumber(redis.call('HGET', sizes, '') or 0)

local function forget(key)
	total = total - (redis.call('HGET', sizes, key) or 0)
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
