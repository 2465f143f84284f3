-- Takes tokens from all buckets, or from none.
-- KEYS: the buckets. A key has the tokens of a bucket and when that was, in µs; a full bucket has none.
-- ARGV: of each bucket the rate per second, the burst, and how many tokens are wanted; 0 only asks whether there is one.
-- Returns for how many seconds to wait, and then how many tokens were taken from each.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local longest, left, answer = 0, {}, {'0'}

for i, key in ipairs(KEYS) do
	local rate, burst, want = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
	local tokens = burst
	local is = redis.call('GET', key)
	if is then
		local had, at = string.match(is, '^(%S+) (%S+)$')
		tokens = math.min(burst, had + math.max(0, now - at) / 1000000 * rate)
	end
	local short = (1 - tokens) / rate -- in seconds; less than a nanosecond is nothing
	if want >= 0 and short >= 1e-9 then
		longest = math.max(longest, short)
	end
	local take = math.min(want, math.max(1, math.floor(tokens)))
	left[i] = math.min(burst, tokens - take)
	answer[i + 1] = string.format('%.17g', take)
end

if longest > 0 then return {string.format('%.17g', longest)} end

-- Buckets are small and needed: a script that has written something is not refused for lack of memory.
redis.call('DEL', KEYS[1])

for i, key in ipairs(KEYS) do
	local rate, burst = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1])
	local full = math.ceil((burst - left[i]) / rate * 1000) -- in so many ms
	if full > 0 then
		redis.call('SET', key, string.format('%.17g %.17g', left[i], now), 'PX', string.format('%.0f', full))
	else
		redis.call('DEL', key)
	end
end
return answer
