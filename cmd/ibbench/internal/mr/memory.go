package mr

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/memevents"
)

var page = uintptr(os.Getpagesize())

// stride is the size of a region in whole pages.
func stride(pt plan.Point) uintptr { return (uintptr(pt.Size) + page - 1) &^ (page - 1) }

// ranges are equal pieces of memory, each mapped by itself.
type ranges struct {
	at     []unsafe.Pointer
	size   uintptr
	number uint64 // of the last page that was mapped
}

func mapRanges(n int, size uintptr) (*ranges, error) {
	r := &ranges{size: size}
	for range n {
		r.at = append(r.at, nil)
		if err := r.remap(len(r.at) - 1); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	return r, nil
}

// remap maps range i, which is not mapped, and gives it a number.
func (r *ranges) remap(i int) error {
	p, err := memevents.Map(r.size)
	if err != nil {
		r.at[i] = nil
		return err
	}
	r.number++
	r.at[i] = p
	*(*uint64)(p) = r.number
	return nil
}

// churn takes range i away and maps it again.
func (r *ranges) churn(i int) error {
	p := r.at[i]
	if err := memevents.Unmap(p, r.size); err != nil {
		return err
	}
	return r.remap(i)
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
		if p != nil {
			err = errors.Join(err, memevents.Unmap(p, r.size))
		}
	}
	r.at = nil
	return err
}

// resident is the memory of this process in bytes. The counter of statm may be some pages per
// thread behind (Documentation/filesystems/proc.rst), the one of smaps_rollup is exact.
func resident() (int64, error) {
	b, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("/proc/self/smaps_rollup has no line Rss")
}
