//go:build debug

package lockrank

import (
	"bytes"
	"fmt"
	"path"
	"runtime"
	"strconv"
	"sync"
)

// goroutine is what one goroutine holds. Only that goroutine touches it; it is in
// the table while there is something to know. One that ends with a lock held leaves its record to
// the next goroutine with its g: the place that the next violation names is the one to look at.
type goroutine struct {
	g        uintptr
	held     []*holding // in the order taken
	handlers []handler
}

// holding is one lock held, immutable: others read it through Mutex.holder.
type holding struct {
	mutex *Mutex
	pcs   [4]uintptr
	n     int
}

type handler struct {
	name   string
	before int // locks held when it began
}

var goroutines sync.Map // Goroutine() to *goroutine

// self returns the calling goroutine's record.
func self() *goroutine {
	key := Goroutine()
	if g, ok := goroutines.Load(key); ok {
		return g.(*goroutine)
	}
	g := &goroutine{g: key}
	goroutines.Store(key, g)
	return g
}

// forget removes an empty record, so that goroutines that end leave none.
func (g *goroutine) forget() {
	if len(g.held) == 0 && len(g.handlers) == 0 {
		goroutines.Delete(g.g)
	}
}

// number reads the number in "goroutine 18 [running]:", the first line of a stack's text
// (runtime.Stack), for violations: it walks the whole stack, which takes 10 µs and more.
func number() uint64 {
	var buf [40]byte
	text := buf[:runtime.Stack(buf[:], false)]
	digits, _, _ := bytes.Cut(bytes.TrimPrefix(text, []byte("goroutine ")), []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("lockrank: no goroutine number in %q", text))
	}
	return id
}

// mayLock panics unless m ranks above everything that is held.
func (g *goroutine) mayLock(m *Mutex) {
	for _, h := range g.held {
		if !m.above(h.mutex) {
			panic(&Violation{Inversion, fmt.Sprintf("goroutine %d wants %v and has %v: take %v first, or unlock before",
				number(), m, h, m)})
		}
	}
}

func (g *goroutine) push(m *Mutex) {
	h := &holding{mutex: m}
	h.n = runtime.Callers(3, h.pcs[:]) // without Callers, push and the Mutex's method
	g.held = append(g.held, h)
	m.holder.Store(h)
}

func (g *goroutine) pop(m *Mutex) {
	for i := len(g.held) - 1; i >= 0; i-- {
		if g.held[i].mutex == m {
			g.held = append(g.held[:i], g.held[i+1:]...)
			m.holder.Store(nil)
			g.forget()
			return
		}
	}
	g.forget()
	text := fmt.Sprintf("goroutine %d unlocks %v, which is free", number(), m)
	if h := m.holder.Load(); h != nil {
		text = fmt.Sprintf("goroutine %d unlocks what another holds, %v: the goroutine that locks unlocks", number(), h)
	}
	panic(&Violation{NotHeld, text})
}

// String names the lock and the place.
func (h *holding) String() string {
	f, _ := runtime.CallersFrames(h.pcs[:h.n]).Next()
	return fmt.Sprintf("%v held, taken at %s:%d in %s", h.mutex,
		path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line, path.Base(f.Function))
}
