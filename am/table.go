package am

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"github.com/ibconduit/conduit/internal/credit"
)

// Limits of a table.
const (
	MaxHandlers = 1 << 16 // the index has two bytes on the wire
	MaxName     = 255     // bytes
)

// Reserved is the beginning of the names of the library's handlers, and of no others.
const Reserved = "conduit."

// Func is what runs when a message arrives. It may reply, look up and lock briefly.
// It must not send requests, wait or poll: see the package comment.
type Func func(c *Call)

// Handler names a function on every rank.
type Handler struct {
	name  string
	f     Func
	table *Table
	index uint16    // in the order of names; fixed with the table
	large *Receiver // of HandleLarge; else nil
}

// Name is the name of the handler.
func (h *Handler) Name() string { return h.name }

// Table is a set of handlers. All ranks of a job have the same: register handlers
// in package variables or init functions. Its first use, by Open, Hash, Encode or Check, fixes it.
type Table struct {
	library bool       // of handlers of the library, and no others
	mu      sync.Mutex // of registration, before there is an endpoint
	byName  map[string]*Handler
	sorted  []*Handler // by name; not nil once the table is fixed
	hash    uint64
}

// Default is the table of the function Handle, for programs with one set of handlers.
var Default = NewTable()

// NewTable returns an empty table.
func NewTable() *Table { return &Table{byName: make(map[string]*Handler)} }

// NewLibraryTable returns an empty table for the parts of the library, which register their
// handlers in it under names that begin with [Reserved]. A job has one, on endpoints of its own,
// and takes none from a program.
func NewLibraryTable() *Table {
	t := NewTable()
	t.library = true
	return t
}

// IsLibrary reports whether NewLibraryTable made the table.
func (t *Table) IsLibrary() bool { return t.library }

// Handle registers a function in the Default table.
func Handle(name string, f Func) *Handler { return Default.Handle(name, f) }

// Handle registers a function. It panics if the name is taken, empty, longer than MaxName, or the
// library's (it begins with [Reserved]), or if the table is fixed: these are mistakes in the
// program's text.
func (t *Table) Handle(name string, f Func) *Handler {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case f == nil || name == "" || len(name) > MaxName:
		panic(fmt.Sprintf("am: Handle(%q): needs a function and a name of 1 to %d bytes", name, MaxName))
	case strings.HasPrefix(name, Reserved) && !t.library:
		panic(fmt.Sprintf("am: Handle(%q): names that begin with %q are the library's: choose another", name, Reserved))
	case t.library && !strings.HasPrefix(name, Reserved):
		panic(fmt.Sprintf("am: Handle(%q): the library's names begin with %q", name, Reserved))
	case t.sorted != nil:
		panic(fmt.Sprintf("am: Handle(%q): the table is in use: register before the job starts, in a package variable "+
			"or an init function", name))
	case t.byName[name] != nil:
		panic(fmt.Sprintf("am: Handle(%q): the name is taken", name))
	case len(t.byName) == MaxHandlers:
		panic(fmt.Sprintf("am: Handle(%q): a table has at most %d handlers", name, MaxHandlers))
	}
	h := &Handler{name: name, f: f, table: t}
	t.byName[name] = h
	return h
}

// fix numbers the handlers.
func (t *Table) fix() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sorted != nil {
		return
	}
	t.sorted = make([]*Handler, 0, len(t.byName))
	for _, h := range t.byName {
		t.sorted = append(t.sorted, h)
	}
	slices.SortFunc(t.sorted, func(a, b *Handler) int { return cmp.Compare(a.name, b.name) })
	for i, h := range t.sorted {
		h.index = uint16(i)
	}
	sum := fnv.New64a()
	_, _ = sum.Write(t.encode()) // never fails
	t.hash = sum.Sum64()
}

// Hash stands for the names of the handlers, and the wire formats of messages and credits. Ranks
// compare it when the job starts: those that differ must not talk. It fixes the table. Every
// message carries half of it.
func (t *Table) Hash() uint64 {
	t.fix()
	return t.hash
}

// Encode lists what Hash stands for, for Check on a rank with another Hash:
// version of this package's and of the credits' format (a byte each), number of handlers (4
// bytes, little endian), then each name behind its length (1 byte).
func (t *Table) Encode() []byte {
	t.fix()
	return t.encode()
}

func (t *Table) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte{Version, credit.WireVersion}, uint32(len(t.sorted)))
	for _, h := range t.sorted {
		b = append(append(b, byte(len(h.name))), h.name...)
	}
	return b
}

// Check compares the table with a rank's, as it encoded it. A *TableError names
// the first handler in which they differ.
func (t *Table) Check(rank int, there []byte) error {
	here := t.Encode()
	if len(there) < 6 {
		return &TableError{Rank: rank, Index: -1, There: fmt.Sprintf("a list of %d bytes", len(there))}
	}
	if [2]byte(there[:2]) != [2]byte(here[:2]) {
		return &TableError{Rank: rank, Index: -1, Here: versions(here), There: versions(there)}
	}
	there = there[6:]
	for i := 0; ; i++ {
		e := &TableError{Rank: rank, Index: i}
		if i < len(t.sorted) {
			e.Here = t.sorted[i].name
		}
		if len(there) > 0 {
			n := int(there[0])
			if n == 0 || n > len(there)-1 {
				e.There = "a list that is cut off"
				return e
			}
			e.There, there = string(there[1:1+n]), there[1+n:]
		}
		switch {
		case e.Here != e.There:
			return e
		case e.Here == "":
			return nil
		}
	}
}

func versions(b []byte) string {
	return fmt.Sprintf("versions %d and %d of the formats of messages and credits", b[0], b[1])
}

// Len is the number of handlers that are registered.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byName)
}

// InHandler reports whether the calling goroutine runs a handler, of any table. Functions
// that may wait call it: a handler must not.
func (t *Table) InHandler() bool { return inHandler.here() }

// find returns nil for an index that no handler has.
func (t *Table) find(index uint16) *Handler {
	if int(index) >= len(t.sorted) {
		return nil
	}
	return t.sorted[index]
}
