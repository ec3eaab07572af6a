package pairs

// Schedule orders all pairs of ranks, in both directions, in steps. The pairs of a step are
// measured at the same time: no host is in two of them.
func Schedule(hosts []string) (steps [][][2]int) {
	var busy []map[string]bool // by step
	for _, p := range tournament(len(hosts)) {
		a, b := hosts[p[0]], hosts[p[1]]
		at := 0
		for at < len(steps) && (busy[at][a] || busy[at][b]) {
			at++
		}
		if at == len(steps) {
			steps, busy = append(steps, nil), append(busy, make(map[string]bool))
		}
		steps[at] = append(steps[at], p)
		busy[at][a], busy[at][b] = true, true
	}
	for _, s := range steps {
		back := make([][2]int, len(s))
		for i, p := range s {
			back[i] = [2]int{p[1], p[0]}
		}
		steps = append(steps, back)
	}
	return steps
}

// tournament is all pairs in the order of the circle method: those of a round are disjoint.
func tournament(n int) (all [][2]int) {
	m := n + n%2 // with an odd number one pauses in each round
	for round := range m - 1 {
		for k := range m / 2 {
			a, b := (round+k)%(m-1), (round+m-1-k)%(m-1)
			if k == 0 {
				b = m - 1
			}
			if a < n && b < n {
				all = append(all, [2]int{min(a, b), max(a, b)})
			}
		}
	}
	return all
}
