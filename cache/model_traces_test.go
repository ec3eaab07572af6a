package cache_test

import "math/rand/v2"

// Traces of pages of kernels of package bench, whose arrays are all another rank's.

// doublesPerPage is of pages of 1 KiB.
const doublesPerPage = 128

// centrality is the backward half of SSCA2's kernel 4: two words for each child of each vertex. The
// vertices of a level lie anywhere, and so do their children, but for those that many edges lead to
// (R-MAT). The two arrays have twice the cache's bytes: SCALE 17 with 1024 pages.
func centrality(pages int, refer func(page int)) {
	rng := rand.New(rand.NewPCG(6, 7))
	scale := 0
	for 1<<scale < pages*doublesPerPage {
		scale++
	}
	label := rng.Perm(1 << scale)
	for range 8 << scale {
		v := 0
		for range scale { // of an edge's end alone: half of the quadrants are .55 and .1, the others .1 and .25
			v <<= 1
			if rng.Float64() > .65 {
				v |= 1
			}
		}
		at := label[v] / doublesPerPage
		refer(at)
		refer(at + pages)
	}
}

// hexahedra is the gather of LULESH: the coordinates of an element's 8 nodes in three arrays.
func hexahedra(pages int, refer func(page int)) {
	n := 45
	if pages < 1024 {
		n = 20
	}
	m := n + 1
	array := (m*m*m + doublesPerPage - 1) / doublesPerPage
	for e := range n * n * n {
		first := e%n + m*(e/n%n+m*(e/(n*n)))
		for c := range 8 {
			node := first + c&1 + m*(c>>1&1+m*(c>>2&1))
			for d := range 3 {
				refer(d*array + node/doublesPerPage)
			}
		}
	}
}

// neighbours is a force step of MiniMD: the positions, 24 bytes each, of the atoms in the cells
// around each atom's, which has 4 of them.
func neighbours(pages int, refer func(page int)) {
	n := 20
	if pages < 1024 {
		n = 10
	}
	wrap := func(i int) int { return (i + n) % n }
	for cell := range n * n * n {
		x, y, z := cell%n, cell/n%n, cell/(n*n)
		for range 4 {
			for k := range 27 {
				other := wrap(x+k%3-1) + n*(wrap(y+k/3%3-1)+n*wrap(z+k/9-1))
				refer(other * 4 * 3 / doublesPerPage)
				refer((other*4*3 + 11) / doublesPerPage)
			}
		}
	}
}
