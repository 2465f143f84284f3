package rerank

// Sample returns which of n lines to send when at most limit can be: all, or limit of them, spread
// evenly and ascending, with the first and, unless limit is 1, the last.
func Sample(n, limit int) []int {
	limit = max(0, min(n, limit))
	chosen := make([]int, limit)
	for i := 1; i < limit; i++ {
		chosen[i] = i * (n - 1) / (limit - 1)
	}
	return chosen
}
