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
// the table while there is something to know.
type goroutine struct {
	id       uint64
	held     []*holding // in the order taken
	handlers []handler
}

// holding is one lock held, immutable: others read it through Mutex.holder.
type holding struct {
	mutex *Mutex
	owner uint64
	pcs   [4]uintptr
	n     int
}

type handler struct {
	name   string
	before int // locks held when it began
}

var goroutines sync.Map // id to *goroutine

// self returns the calling goroutine's record.
func self() *goroutine {
	id := goroutineID()
	if g, ok := goroutines.Load(id); ok {
		return g.(*goroutine)
	}
	g := &goroutine{id: id}
	goroutines.Store(id, g)
	return g
}

// forget removes a record that says nothing, so that goroutines that end leave none.
func (g *goroutine) forget() {
	if len(g.held) == 0 && len(g.handlers) == 0 {
		goroutines.Delete(g.id)
	}
}

// goroutineID reads the number in "goroutine 18 [running]:", the first line of a
// stack's text (runtime.Stack). The runtime offers no other way; it costs about a microsecond.
func goroutineID() uint64 {
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
			panic(&Violation{Inversion, fmt.Sprintf("goroutine %d wants %v and has %v: take %v first, or unlock before", g.id, m, h, m)})
		}
	}
}

func (g *goroutine) push(m *Mutex) {
	h := &holding{mutex: m, owner: g.id}
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
	text := fmt.Sprintf("goroutine %d unlocks %v, which is free", g.id, m)
	if h := m.holder.Load(); h != nil {
		text = fmt.Sprintf("goroutine %d unlocks what goroutine %d holds, %v: who locks unlocks", g.id, h.owner, h)
	}
	panic(&Violation{NotHeld, text})
}

// String names the lock and the place.
func (h *holding) String() string {
	f, _ := runtime.CallersFrames(h.pcs[:h.n]).Next()
	return fmt.Sprintf("%v held, taken at %s:%d in %s", h.mutex, path.Join(path.Base(path.Dir(f.File)), path.Base(f.File)), f.Line, path.Base(f.Function))
}
