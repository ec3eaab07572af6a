package sim

// timer is one thing that will happen. It lies in the object that it happens to.
type timer struct {
	owner    firer
	deadline int64 // while it waits for a blocked way: when to give up; else 0
	idx      int32 // place in the heap plus 1; 0 when not armed
	periodic bool  // looks again and again; no sign of life
}

// firer is called when one of its timers is due.
type firer interface{ fire(t *timer) }

func (t *timer) armed() bool { return t.idx != 0 }

// entry is a timer in the heap, with its key beside it for the cache's sake.
type entry struct {
	at  int64  // ns
	tie uint64 // random above, serial below: no two are equal
	t   *timer
}

func (a *entry) before(b *entry) bool { return a.at < b.at || a.at == b.at && a.tie < b.tie }

// heap is a 4-ary heap of timers that know their places.
type heap struct {
	e        []entry
	periodic int // how many of them are
}

// set arms a timer, or moves it.
func (h *heap) set(t *timer, at int64, tie uint64) {
	if t.idx == 0 {
		h.e = append(h.e, entry{})
		t.idx = int32(len(h.e))
		if t.periodic {
			h.periodic++
		}
	}
	i := int(t.idx) - 1
	h.e[i] = entry{at, tie, t}
	h.down(h.up(i))
}

// remove disarms a timer.
func (h *heap) remove(t *timer) {
	if t.idx == 0 {
		return
	}
	i, last := int(t.idx)-1, len(h.e)-1
	t.idx = 0
	if t.periodic {
		h.periodic--
	}
	moved := h.e[last]
	h.e[last] = entry{}
	h.e = h.e[:last]
	if i != last {
		h.e[i] = moved
		moved.t.idx = int32(i + 1)
		h.down(h.up(i))
	}
}

func (h *heap) up(i int) int {
	x := h.e[i]
	for i > 0 {
		p := (i - 1) / 4
		if !x.before(&h.e[p]) {
			break
		}
		h.place(i, h.e[p])
		i = p
	}
	h.place(i, x)
	return i
}

func (h *heap) down(i int) {
	x := h.e[i]
	for {
		c := 4*i + 1
		if c >= len(h.e) {
			break
		}
		least := c
		for k := c + 1; k < min(c+4, len(h.e)); k++ {
			if h.e[k].before(&h.e[least]) {
				least = k
			}
		}
		if !h.e[least].before(&x) {
			break
		}
		h.place(i, h.e[least])
		i = least
	}
	h.place(i, x)
}

func (h *heap) place(i int, x entry) {
	h.e[i] = x
	x.t.idx = int32(i + 1)
}
