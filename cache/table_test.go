package cache

import (
	"testing"
	"unsafe"
)

// probes is the mean number of slots that a look-up of n keys reads.
func probes(t *testing.T, keys []uint64) float64 {
	t.Helper()
	c := &directory{entries: make([]entry, len(keys)), table: newTable(len(keys) * 3 / 2)}
	for i, key := range keys {
		c.entries[i].key = key
		c.enter(uint16(i))
	}
	sum := 0
	for i, key := range keys {
		mask := uint64(len(c.table.slots) - 1)
		at := c.table.home(key)
		for c.table.slots[at&mask] != uint16(i) {
			at++
			sum++
		}
		sum++
	}
	for i := range keys { // as it empties, the others stay where they are found
		c.leave(uint16(i))
		c.entries[i].key = 0
		if j := i + 1; j < len(keys) && c.find(keys[j]) != uint16(j) {
			t.Fatalf("key %#x is lost", keys[j])
		}
	}
	return float64(sum) / float64(len(keys))
}

// Chapel's hash is the low bits of the page's number: the pages of a column of a matrix may be one
// chain.
func TestStridesAndRanksSpread(t *testing.T) {
	const n = 1024
	for shift := range uint(28) {
		var strided, ranks []uint64
		for i := range uint64(n) {
			strided = append(strided, 7<<rankShift|i<<shift)
			ranks = append(ranks, (1+i%64)<<rankShift|i/64<<shift)
		}
		if a, b := probes(t, strided), probes(t, ranks); a > 2 || b > 2 {
			t.Errorf("stride 2^%d: %.1f probes, of 64 ranks %.1f", shift, a, b)
		}
	}
	var ranks []uint64
	for i := range uint64(n) {
		ranks = append(ranks, (1+i)<<rankShift|5)
	}
	if a := probes(t, ranks); a > 2 {
		t.Errorf("one page of %d ranks: %.1f probes", n, a)
	}
}

// A worker's cache of 1024 pages takes at most 1.15 MiB.
func TestACacheIsSmall(t *testing.T) {
	cfg, err := Config{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	c := new(Cache)
	c.pages.cfg = cfg
	c.shape()
	size := int(unsafe.Sizeof(*c)) + (cfg.Pages+len(c.net.flights))*cfg.PageSize
	size += len(c.pages.entries)*int(unsafe.Sizeof(entry{})) + 2*len(c.pages.table.slots) + 8*len(c.pages.ghosts.keys) + 2*cap(c.pages.unused)
	size += 8*len(c.pages.masks) + 2*cap(c.pages.freeMasks) + 2*cap(c.pages.work) + cap(c.pages.exposed)*int(unsafe.Sizeof(extent{}))
	size += len(c.net.ops)*int(unsafe.Sizeof(op{})) + len(c.net.flights)*int(unsafe.Sizeof(flight{})) + 2*cap(c.net.freeOps) + 2*cap(c.net.freeSlots)
	size += cap(c.net.pieces)*int(unsafe.Sizeof(piece{})) + len(c.usage.shadow.entries)*int(unsafe.Sizeof(entry{})) + 4096 // Stats
	if unsafe.Sizeof(entry{}) != 64 || size > 115<<20/100 {
		t.Errorf("an entry has %d bytes, a cache %d, which is %.3f MiB", unsafe.Sizeof(entry{}), size, float64(size)/(1<<20))
	}
	t.Logf("%d bytes, %.3f MiB", size, float64(size)/(1<<20))
}
