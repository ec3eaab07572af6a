// Package sparse is an array of which only the parts in use take memory: what a rank keeps of its
// peers must not grow with those that it never exchanges anything with.
package sparse

import (
	"fmt"
	"iter"
	"sync/atomic"
)

// pageSize is how many elements share a page. Smaller pages waste less on a few peers far apart,
// larger ones need a shorter directory: 8/pageSize bytes for each element that is not used.
const pageSize = 32

// Array holds Len elements, zero at first. Any goroutine may get their addresses, which stay;
// access to the elements is the user's to synchronise.
type Array[T any] struct {
	pages []atomic.Pointer[[pageSize]T]
	n     int
}

// Make returns an array of n elements.
func Make[T any](n int) Array[T] {
	return Array[T]{pages: make([]atomic.Pointer[[pageSize]T], (n+pageSize-1)/pageSize), n: n}
}

// Len is the number of elements, used or not.
func (a *Array[T]) Len() int { return a.n }

// Find returns the address of element i, or nil: i is out of range, or its page is not in use and
// the element zero.
func (a *Array[T]) Find(i int) *T {
	k := uint(i) / pageSize
	if uint(i) >= uint(a.n) || k >= uint(len(a.pages)) { // the second for the compiler
		return nil
	}
	page := a.pages[k].Load()
	if page == nil {
		return nil
	}
	return &page[uint(i)%pageSize]
}

// At returns the address of element i, to change it. It panics for an i out of range, like an
// index.
func (a *Array[T]) At(i int) *T {
	if e := a.Find(i); e != nil {
		return e
	}
	if uint(i) >= uint(a.n) {
		panic(fmt.Sprintf("sparse: index %d of %d elements", i, a.n))
	}
	a.pages[i/pageSize].CompareAndSwap(nil, new([pageSize]T))
	return a.Find(i)
}

// All iterates over the elements of all pages in use, zero ones included.
func (a *Array[T]) All() iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		for k := range a.pages {
			page := a.pages[k].Load()
			if page == nil {
				continue
			}
			for i := range min(pageSize, a.n-k*pageSize) {
				if !yield(k*pageSize+i, &page[i]) {
					return
				}
			}
		}
	}
}
