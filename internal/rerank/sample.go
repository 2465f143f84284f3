package rerank

// Sample returns the indexes of the lines to send if there are n lines and at most limit can be
// sent. If that is not all lines, they are spread evenly, and include the first line and, unless
// limit is 1, the last.
func Sample(n, limit int) []int {
	limit = max(0, min(n, limit))
	chosen := make([]int, limit)
	for i := 1; i < limit; i++ {
		chosen[i] = i * (n - 1) / (limit - 1)
	}
	return chosen
}
