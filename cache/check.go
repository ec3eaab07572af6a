package cache

// Own reports whether some of n bytes of a rank are what this cache has put, and may not be at
// their target yet. The bytes must be in the rank's memory.
func (c *Cache) Own(rank int, off uint64, n int) bool {
	if n == 0 {
		return false
	}
	for _, i := range c.overlapped(rank, off, uint64(n)) {
		e := &c.entries[i]
		if o, k, _ := c.within(e.key, off, uint64(n)); e.mask != none && anyBits(c.maskOf(e), o, k) {
			return true
		}
	}
	return false
}
