//go:build linux && cgo

package verbs

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ibconduit/conduit/internal/handle"
)

// object is what every verbs object has: a place in the tree of ownership, a guard against use
// after Close, and a leak report.
type object struct {
	dev     *Context
	parents []*object // closed after this one; the pointers keep them alive
	kind    string    // "QP"
	name    string    // "QP 0x11"
	handle  *handle.Handle
	guard   guard

	mu     sync.Mutex
	kids   map[string]int
	closed bool
}

// adopt makes o a child of its parents before the C object is made, so that none of them is closed
// meanwhile.
func (o *object) adopt(op string) error {
	for i, p := range o.parents {
		if err := p.addKid(op, o.kind); err != nil {
			o.orphan(o.parents[:i])
			return err
		}
	}
	return nil
}

// orphan undoes adopt.
func (o *object) orphan(parents []*object) {
	for _, p := range parents {
		p.mu.Lock()
		p.kids[o.kind]--
		p.mu.Unlock()
	}
}

func (o *object) addKid(op, kind string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return o.closedError(op)
	}
	if o.kids == nil {
		o.kids = map[string]int{}
	}
	o.kids[kind]++
	return nil
}

// close destroys the C object unless something still uses it. The second call does nothing.
func (o *object) close(destroy func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if kids := o.kidList(); kids != "" {
		return o.busy("still open: "+kids, "close those first")
	}
	if !o.guard.shut() {
		return o.busy("a call on it is in progress, or it waits in a doorbell",
			"let the call end, and ring or reset the doorbell, first")
	}
	if err := destroy(); err != nil {
		o.guard.reopen()
		return err
	}
	o.closed = true
	o.orphan(o.parents)
	o.handle.Close()
	return nil
}

func (o *object) kidList() string {
	var out []string
	for kind, n := range o.kids {
		if n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, kind))
		}
	}
	sort.Strings(out)
	return strings.Join(out, ", ")
}

func (o *object) busy(detail, remedy string) error {
	return &Error{Op: "close", Device: o.dev.info.Name, Object: o.name, Errno: syscall.EBUSY, Err: ErrBusy,
		Detail: detail, Remedy: remedy}
}

// use keeps the object open until done.
func (o *object) use(op string) error {
	if !o.guard.enter() {
		return o.closedError(op)
	}
	return nil
}

func (o *object) done() { o.guard.leave() }

func (o *object) closedError(op string) error {
	return &Error{Op: op, Device: o.dev.info.Name, Object: o.name, Err: os.ErrClosed}
}

// fail makes the error of a failed call on the object.
func (o *object) fail(op string, errno syscall.Errno, detail, remedy string) *Error {
	return &Error{Op: op, Device: o.dev.info.Name, Object: o.name, Errno: errno, Detail: detail, Remedy: remedy}
}

// guard counts the calls in progress; once shut it lets none in.
type guard struct{ n atomic.Int64 }

const guardShut = -1 << 32

func (g *guard) enter() bool {
	if g.n.Add(1) > 0 {
		return true
	}
	g.n.Add(-1)
	return false
}

func (g *guard) leave()     { g.n.Add(-1) }
func (g *guard) shut() bool { return g.n.CompareAndSwap(0, guardShut) }
func (g *guard) reopen()    { g.n.Add(-guardShut) }
