package mr

import (
	"errors"
	"os"
	"unsafe"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/memevents"
)

var page = uintptr(os.Getpagesize())

// stride is the size of a region in whole pages.
func stride(pt plan.Point) uintptr { return (uintptr(pt.Size) + page - 1) &^ (page - 1) }

// ranges are equal pieces of memory, each mapped by itself.
type ranges struct {
	at   []unsafe.Pointer
	size uintptr
}

func mapRanges(n int, size uintptr) (*ranges, error) {
	r := &ranges{size: size}
	for range n {
		p, err := memevents.Map(size)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		r.at = append(r.at, p)
	}
	return r, nil
}

// populate writes into every page.
func (r *ranges) populate() {
	for _, p := range r.at {
		for at := page; at < r.size; at += page {
			*(*byte)(unsafe.Add(p, at)) = 1
		}
	}
}

func (r *ranges) close() (err error) {
	for _, p := range r.at {
		err = errors.Join(err, memevents.Unmap(p, r.size))
	}
	r.at = nil
	return err
}
