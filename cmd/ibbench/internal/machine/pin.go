package machine

// Share deals cpus out to the ranks of a host: equal consecutive parts, one
// processor each when there are fewer than ranks.
func Share(cpus []int, rank, ranks int) []int {
	if len(cpus) == 0 {
		return nil
	}
	n := len(cpus) / ranks
	if n == 0 {
		return []int{cpus[rank%len(cpus)]}
	}
	return cpus[rank*n : (rank+1)*n]
}
