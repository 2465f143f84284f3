-- Takes tokens from all buckets, or from none.
-- KEYS: the buckets. A key holds the tokens of a bucket and their time in µs; a full bucket has no key.
-- A bucket with anything else is emptied: an error would stop the store for all clients. A time in the future counts as
-- now: the clock was set back, or that of a former master was ahead.
-- ARGV: for each bucket the rate per second, the burst, and the tokens wanted; 0 only checks that there is one.
-- Returns the seconds to wait, or 0 and the tokens taken from each bucket.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local longest, left, answer = 0, {}, {'0'}

local function write(key, rate, burst, tokens)
	local full = math.ceil((burst - tokens) / rate * 1000) -- ms until it is full
	if full > 0 then
		redis.call('SET', key, string.format('%.17g %.17g', tokens, now), 'PX', string.format('%.0f', full))
	else
		redis.call('DEL', key)
	end
end

for i, key in ipairs(KEYS) do
	local rate, burst, want = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
	local tokens = burst
	local current = redis.pcall('GET', key)
	if current then
		local had, at = string.match(tostring(current), '^(%-?%d%S*) (%d%S*)$')
		had, at = tonumber(had or ''), tonumber(at or '')
		if had and at and at <= now then
			tokens = math.min(burst, had + (now - at) / 1000000 * rate)
		else
			tokens = math.min(burst, had or 0)
			redis.call('DEL', key)
			write(key, rate, burst, tokens)
		end
	end
	local short = (1 - tokens) / rate -- seconds to wait; less than a nanosecond counts as 0
	if want >= 0 and short >= 1e-9 then
		longest = math.max(longest, short)
	end
	local take = math.min(want, math.max(1, math.floor(tokens)))
	left[i] = math.min(burst, tokens - take)
	answer[i + 1] = string.format('%.17g', take)
end

if longest > 0 then return {string.format('%.17g', longest)} end

-- DEL comes first: Redis checks for free memory only before the first write of a script, and small values must be stored.
redis.call('DEL', KEYS[1])

for i, key in ipairs(KEYS) do
	write(key, tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), left[i])
end
return answer
