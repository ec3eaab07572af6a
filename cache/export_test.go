package cache

// Age has the numbers that tell old from new begin anew soon, as they do in a cache that has been
// used for long.
func (c *Cache) Age() {
	p := &c.pages
	c.Acquire() // which makes all copies old, as their numbers will say
	for i := range p.entries {
		e := &p.entries[i]
		p.refresh(uint16(i))
		if e.wanted == 0 {
			e.gen = 1<<32 - 3
		}
	}
	p.epoch = always - 5
}
