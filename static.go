package conduit

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/segment"
	"github.com/ibconduit/conduit/segment/dist"
)

// SharedTable is a set of shared arrays that jobs have from Join on. All ranks of a job have the
// same: register them in package variables or init functions. Its first job fixes it.
type SharedTable struct {
	mu     sync.Mutex
	byName map[string]*static
	sorted []*static // by name; not nil once the table is fixed
}

// static is one array of a table.
type static struct {
	name  string
	elem  reflect.Type
	n     int
	how   Distribution
	index int // in the order of names; fixed with the table
	make  func(j *Job, l dist.Layout, off uint64) any
}

// DefaultShared is the table of the function Shared.
var DefaultShared = NewSharedTable()

// NewSharedTable returns an empty table.
func NewSharedTable() *SharedTable { return &SharedTable{byName: make(map[string]*static)} }

// SharedArray is a shared array of n elements in every job of its table. Of has that of a job.
type SharedArray[T any] struct {
	table *SharedTable
	entry *static
}

// Shared registers an array in DefaultShared: var a = conduit.Shared[float64]("a", n,
// conduit.Block(64)). Its elements are 0 when a job begins. It panics if the name is taken or
// empty, if there are less than 1 elements or more than 2^40 bytes of them, if T holds Go pointers
// or has no bytes, or if a job has begun: these are mistakes in the program's text.
func Shared[T any](name string, n int, how Distribution) *SharedArray[T] {
	return SharedIn[T](DefaultShared, name, n, how)
}

// SharedIn is Shared with another table, for Config.Shared.
func SharedIn[T any](t *SharedTable, name string, n int, how Distribution) *SharedArray[T] {
	fail := func(text string, args ...any) {
		panic(fmt.Sprintf("conduit: Shared(%q): ", name) + fmt.Sprintf(text, args...))
	}
	elem := reflect.TypeFor[T]()
	size := uint64(elem.Size())
	if !pointerFree[T]() {
		fail("%v", typeError[T]())
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
	e := &static{name: name, elem: elem, n: n, how: how, make: func(j *Job, l dist.Layout, off uint64) any {
		return &Array[T]{job: j, layout: l, n: uint64(n), off: off, static: true}
	}}
	t.byName[name] = e
	return &SharedArray[T]{table: t, entry: e}
}

// maxStatic bounds a static array in bytes: sums of them do not overflow.
const maxStatic = 1 << 40

// Of is the array in a job. It panics if the job has another table (Config.Shared).
func (s *SharedArray[T]) Of(j *Job) *Array[T] {
	if j.cfg.Shared != s.table {
		panic(fmt.Sprintf("conduit: shared array %q is not in the job's table (Config.Shared)", s.entry.name))
	}
	return j.heaps.statics[s.entry.index].(*Array[T])
}

// Len is the number of elements.
func (s *SharedArray[T]) Len() int { return s.entry.n }

// fix numbers the arrays.
func (t *SharedTable) fix() []*static {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sorted == nil {
		t.sorted = make([]*static, 0, len(t.byName))
		for _, e := range t.byName {
			t.sorted = append(t.sorted, e)
		}
		slices.SortFunc(t.sorted, func(a, b *static) int { return cmp.Compare(a.name, b.name) })
		for i, e := range t.sorted {
			e.index = i
		}
	}
	return t.sorted
}

// text lists what the ranks must have alike, an array a line. It fixes the table.
func (t *SharedTable) text() string {
	var b strings.Builder
	for _, e := range t.fix() {
		fmt.Fprintf(&b, "%q: %d of %v (%d bytes), %v\n", e.name, e.n, e.elem, e.elem.Size(), e.how)
	}
	return b.String()
}

func (t *SharedTable) hash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.text())) // never fails
	return h.Sum64()
}

// each calls f with where each array lies, in the order of names, and returns how many bytes all
// take at each rank.
func (t *SharedTable) each(ranks int, f func(e *static, l dist.Layout, off uint64)) (end uint64, err error) {
	for _, e := range t.fix() {
		l, err := e.how.layout(ranks, uint64(e.elem.Size()))
		if err != nil {
			return 0, fmt.Errorf("shared array %q: %w", e.name, err)
		}
		if f != nil {
			f(e, l, end)
		}
		n, ok := l.Bytes(uint64(e.n))
		if end += (n + lineAlign - 1) &^ (lineAlign - 1); !ok || end > math.MaxInt64-maxStatic {
			return 0, fmt.Errorf("shared array %q: the table has more than %d bytes", e.name, uint64(math.MaxInt64-maxStatic))
		}
	}
	return end, nil
}

func (t *SharedTable) place(ranks int) (uint64, error) { return t.each(ranks, nil) }

// open makes the arrays of a job, by index.
func (t *SharedTable) open(j *Job) (all []any) {
	_, _ = t.each(j.size, func(e *static, l dist.Layout, off uint64) { // place has had its error
		all = append(all, e.make(j, l, off))
	})
	return all
}

// compareShared refuses ranks whose shared data lie elsewhere. Compared with rank 0 so that every
// rank prints the same.
func (j *joining) compareShared(ctx context.Context, all []hello) error {
	first := &all[0]
	for r := range all {
		switch h := &all[r]; {
		case h.heap != first.heap:
			return fmt.Errorf("rank %d was configured with a heap of %d bytes, rank 0 with %d (-1: all): they must be equal (Config.HeapSize, IBCONDUIT_HEAP_SIZE)",
				r, int64(h.heap), int64(first.heap))
		case h.symm != first.symm:
			return fmt.Errorf("rank %d was configured with a symmetric heap of %d bytes, rank 0 with %d: they must be equal (Config.SymmetricSize, IBCONDUIT_SYMMETRIC_SIZE)",
				r, h.symm, first.symm)
		}
	}
	odd := slices.IndexFunc(all, func(h hello) bool { return h.shared != first.shared })
	if odd < 0 {
		return nil
	}
	lists, err := j.exchangeOf(ctx, odd, []byte(j.cfg.Shared.text()))
	if err != nil {
		return err
	}
	have, other := segment.FirstDifference(string(lists[0]), string(lists[odd]))
	return fmt.Errorf("rank %d has other shared arrays than rank 0, which has %s; rank %d has %s: start the same program on all ranks, and register before Join (Config.Shared)",
		odd, orNothing(have), odd, orNothing(other))
}

// orNothing is a line of another rank's, the last of which is empty.
func orNothing(line string) string {
	return cmp.Or(errtext.Printable([]byte(line), maxReason), "nothing")
}

// local is n elements of this rank's segment at an offset that is known to be right.
func local[T any](j *Job, off, n uint64) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&j.seg.User()[off])), n)
}
