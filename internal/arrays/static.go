package arrays

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/ibconduit/conduit/internal/dist"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
	"github.com/ibconduit/conduit/internal/plain"
)

// Table is a set of static arrays, which jobs have from Join on. Its first job fixes it.
type Table struct {
	mu     sync.Mutex
	byName map[string]*Static
	sorted []*Static // by name; not nil once the table is fixed
}

// Static is one array of a table.
type Static struct {
	name  string
	elem  reflect.Type
	n     int
	how   Distribution
	index int // in the order of names; fixed with the table
	make  func(j Job, l dist.Layout, off uint64) any
}

// Name is the array's name in its table.
func (e *Static) Name() string { return e.name }

// Len is the number of elements.
func (e *Static) Len() int { return e.n }

// Index is its place in what [Table.Open] returns.
func (e *Static) Index() int { return e.index }

// NewTable returns an empty table.
func NewTable() *Table { return &Table{byName: make(map[string]*Static)} }

// Register adds an array to a table. It panics for mistakes in the program's text.
func Register[T any](t *Table, name string, n int, how Distribution) *Static {
	fail := func(text string, args ...any) {
		panic(fmt.Sprintf("conduit: Shared(%q): ", name) + fmt.Sprintf(text, args...))
	}
	elem := reflect.TypeFor[T]()
	size := uint64(elem.Size())
	if !plain.Is[T]() {
		fail("%v", global.TypeErr[T]())
	}
	if name == "" || strings.ContainsRune(name, '\n') {
		fail("needs a name of one line")
	}
	if n < 1 || size == 0 || uint64(n) > maxStatic/size {
		fail("%d elements of %d bytes, want 1 or more, and %d bytes at most", n, size, uint64(maxStatic))
	}
	if _, err := how.layout(1, size); err != nil {
		fail("%v", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sorted != nil {
		fail("the table is in use: register before the job starts, in a package variable or an init function")
	}
	if t.byName[name] != nil {
		fail("the name is taken")
	}
	e := &Static{name: name, elem: elem, n: n, how: how, make: func(j Job, l dist.Layout, off uint64) any {
		return &Array[T]{job: j, layout: l, n: uint64(n), off: off, static: true}
	}}
	t.byName[name] = e
	return e
}

// maxStatic bounds a static array in bytes: sums of them do not overflow.
const maxStatic = 1 << 40

// fix numbers the arrays.
func (t *Table) fix() []*Static {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sorted == nil {
		t.sorted = make([]*Static, 0, len(t.byName))
		for _, e := range t.byName {
			t.sorted = append(t.sorted, e)
		}
		slices.SortFunc(t.sorted, func(a, b *Static) int { return cmp.Compare(a.name, b.name) })
		for i, e := range t.sorted {
			e.index = i
		}
	}
	return t.sorted
}

// Text lists the arrays, which ranks must have alike, one a line. It fixes the table.
func (t *Table) Text() string {
	var b strings.Builder
	for _, e := range t.fix() {
		fmt.Fprintf(&b, "%q: %d of %v (%d bytes), %v\n", e.name, e.n, e.elem, e.elem.Size(), e.how)
	}
	return b.String()
}

// Hash is the hash of Text.
func (t *Table) Hash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Text())) // never fails
	return h.Sum64()
}

// each calls f with where each array lies, in the order of names, and returns how many bytes all
// take at each rank.
func (t *Table) each(ranks int, f func(e *Static, l dist.Layout, off uint64)) (end uint64, err error) {
	for _, e := range t.fix() {
		l, err := e.how.layout(ranks, uint64(e.elem.Size()))
		if err != nil {
			return 0, fmt.Errorf("shared array %q: %w", e.name, err)
		}
		if f != nil {
			f(e, l, end)
		}
		n, ok := l.Bytes(uint64(e.n))
		if end += (n + heap.LineAlign - 1) &^ (heap.LineAlign - 1); !ok || end > math.MaxInt64-maxStatic {
			return 0, fmt.Errorf("shared array %q: the table has more than %d bytes", e.name, uint64(math.MaxInt64-maxStatic))
		}
	}
	return end, nil
}

// Place returns how many bytes the arrays take at each rank.
func (t *Table) Place(ranks int) (uint64, error) { return t.each(ranks, nil) }

// Open makes the arrays of a job, by index.
func (t *Table) Open(j Job) (all []any) {
	_, _ = t.each(j.Size(), func(e *Static, l dist.Layout, off uint64) { // Place has had its error
		all = append(all, e.make(j, l, off))
	})
	return all
}
