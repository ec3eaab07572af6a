//go:build debug

package lockrank

import (
	"fmt"
	"sync/atomic"
)

// Checked reports whether the rules are checked.
const Checked = true

// Mutex is a mutual exclusion lock with a rank. Init comes before its first use.
// It must not be copied.
type Mutex struct {
	mu       core
	class    Class
	instance int
	holder   atomic.Pointer[holding] // nil when free
}

// Init gives the lock its rank; a class of one lock has instance 0.
func (m *Mutex) Init(c Class, instance int) {
	if !c.Valid() {
		panic(&Violation{NotInitialised, fmt.Sprintf("Init with %v: use one of the constants", c)})
	}
	m.class, m.instance = c, instance
}

// Lock takes the lock.
func (m *Mutex) Lock() {
	m.mustHaveRank()
	g := self()
	g.mayLock(m)
	m.mu.Lock()
	g.push(m)
}

// TryLock takes the lock if that needs no waiting, in any order.
func (m *Mutex) TryLock() bool {
	m.mustHaveRank()
	g := self()
	if !m.mu.TryLock() {
		g.forget()
		return false
	}
	g.push(m)
	return true
}

// Unlock gives the lock back.
func (m *Mutex) Unlock() {
	g := self()
	g.pop(m)
	m.mu.Unlock()
}

// MustHoldNone: the caller is about to wait or poll.
func MustHoldNone(op string) {
	g := self()
	defer g.forget()
	if len(g.held) > 0 {
		panic(&Violation{HeldInWait, fmt.Sprintf("%s with %v: unlock it before, the goroutine that could end the wait "+
			"may need it", op, g.held[len(g.held)-1])})
	}
}

// EnterHandler: the goroutine runs a message's handler from here on.
func EnterHandler(name string) {
	g := self()
	g.handlers = append(g.handlers, handler{name, len(g.held)})
}

// LeaveHandler: the handler has returned.
func LeaveHandler() {
	g := self()
	defer g.forget()
	if len(g.handlers) == 0 {
		panic(&Violation{NotInHandler, "LeaveHandler without EnterHandler on this goroutine"})
	}
	h := g.handlers[len(g.handlers)-1]
	g.handlers = g.handlers[:len(g.handlers)-1]
	if len(g.held) > h.before {
		panic(&Violation{HeldByHandler, fmt.Sprintf("handler %q returned with %v: unlock it on every path", h.name,
			g.held[len(g.held)-1])})
	}
}

// CheckCommunication: the caller is about to send.
func CheckCommunication(op string) {
	g := self()
	defer g.forget()
	if n := len(g.handlers); n > 0 {
		panic(&Violation{InHandler, fmt.Sprintf("%s in handler %q: a handler may reply, look up and lock, nothing else; "+
			"pass the work to a goroutine",
			op, g.handlers[n-1].name)})
	}
}

func (m *Mutex) String() string {
	if m.class == HeapLocal || m.class == Endpoint || m.instance != 0 {
		return fmt.Sprintf("%v[%d]", m.class, m.instance)
	}
	return m.class.String()
}

func (m *Mutex) mustHaveRank() {
	if m.class == 0 {
		panic(&Violation{NotInitialised, "call Init before the first Lock"})
	}
}

// above reports whether m may be taken while n is held.
func (m *Mutex) above(n *Mutex) bool {
	return m.class > n.class || m.class == n.class && m.instance > n.instance
}
