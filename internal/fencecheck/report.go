package fencecheck

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/internal/errtext"
)

// Kind is how bytes were accessed.
type Kind uint8

// The kinds.
const (
	KindUnknown Kind = iota // by whom is not known: another process, or the rank's own store
	KindRead                // by a get
	KindWrite               // by a put
	KindAtomic
	KindLoad  // of the rank's own memory
	KindStore // to the rank's own memory
)

func (k Kind) String() string {
	return [...]string{"unknown", "get", "put", "atomic", "load", "store"}[k]
}

// Missing is what of a fence is not there between two accesses.
type Missing uint8

// What is missing.
const (
	MissingOrder   Missing = iota // no word has come from who was first: a barrier, a message, a word
	MissingRelease                // the first access was a write that its rank has not released
	MissingAcquire                // word has come, and the second rank has not acquired since
)

func (m Missing) String() string {
	return [...]string{"nothing orders them", "the first is not released", "the second rank has not acquired since"}[m]
}

// Place is a line of the program.
type Place struct {
	File     string
	Line     int
	Function string
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", filepath.Base(p.File), p.Line) }

// Access is one of two accesses. Stack has the line that called the library, then its callers, some
// of them; it is empty where that is not known.
type Access struct {
	Rank  int // -1: not known
	Kind  Kind
	Stack []Place
}

func (a Access) String() string {
	if a.Kind == KindUnknown {
		return "a write of another process, or of the owner itself"
	}
	s := fmt.Sprintf("%s of rank %d", errtext.A(a.Kind), a.Rank)
	for i, p := range a.Stack {
		s += []string{" at ", ", called at "}[min(i, 1)] + fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return s
}

// Report is a pair of accesses to the same bytes that are not in order: the First was told before
// the Second.
type Report struct {
	First, Second Access
	Missing       Missing
	Rank          int    // whose memory it is
	Off           uint64 // of the second access, in bytes from the begin of the user's region
	Len           int    // of the second access, in bytes
}

func (r Report) String() string {
	return fmt.Sprintf("missing fence: %d bytes at offset %d of rank %d: %v:\n\t%v\n\t%v", r.Len, r.Off, r.Rank, r.Missing, r.First, r.Second)
}

// depth is how many frames a stack has, with those of the library; shown how many of the program's
// are told of.
const (
	depth = 20
	shown = 5
)

type trace [depth]uintptr

// stack is a trace that is kept once.
type stack struct{ trace trace }

func caller() (t trace) {
	runtime.Callers(3, t[:])
	return t
}

func (c *Checker) stack(t trace) *stack {
	s := c.stacks[t]
	if s == nil {
		s = &stack{t}
		c.stacks[t] = s
	}
	return s
}

// places are the program's lines of a stack.
func (s *stack) places() (all []Place) {
	n := slices.Index(s.trace[:], 0)
	if n < 0 {
		n = depth
	}
	if n == 0 {
		return nil
	}
	for frames := runtime.CallersFrames(s.trace[:n]); len(all) < shown; {
		f, more := frames.Next()
		if len(all) > 0 || !ofLibrary(f.Function, f.File) {
			if strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, "testing.") {
				break
			}
			all = append(all, Place{f.File, f.Line, f.Function})
		}
		if !more {
			break
		}
	}
	return all
}

const module = "github.com/ibconduit/conduit"

// libraries are the packages whose functions are no place in the program. The kernels are programs.
var libraries = []string{"am", "cache", "coll", "flow", "internal", "segment"}

const kernels = "internal/bench"

// ofLibrary reports whether a function is the library's. Its tests are programs.
func ofLibrary(function, file string) bool {
	rest, ok := strings.CutPrefix(function, module)
	if !ok || strings.HasSuffix(file, "_test.go") {
		return false
	}
	if strings.HasPrefix(rest, ".") {
		return true
	}
	rest = strings.TrimPrefix(rest, "/")
	of := func(p string) bool { return strings.HasPrefix(rest, p+".") || strings.HasPrefix(rest, p+"/") }
	return slices.ContainsFunc(libraries, of) && !of(kernels)
}

// report keeps a pair, unless there is one of the same lines.
func (c *Checker) report(first, second *access, rank int, off uint64, n int, missing Missing) {
	pair := [2]*stack{first.from, second.from}
	if c.pairs[pair] {
		return
	}
	c.pairs[pair] = true
	r := Report{
		First:   Access{first.rank, first.kind, first.from.places()},
		Second:  Access{second.rank, second.kind, second.from.places()},
		Missing: missing, Rank: rank, Off: off, Len: n,
	}
	key := fmt.Sprint(r.First.Stack, r.Second.Stack, r.First.Kind, r.Second.Kind)
	if c.places[key] {
		return
	}
	c.places[key] = true
	c.reports = append(c.reports, r)
	c.fresh = append(c.fresh, r)
}
