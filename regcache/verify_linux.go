package regcache

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// frameReader reads which page frames are behind addresses: proc_pid_pagemap(5).
type frameReader struct{ f *os.File }

const (
	frameMask = 1<<55 - 1
	swapped   = 1 << 62
	present   = 1 << 63
)

// newFrameReader returns nil when it is not wanted, or when only the build did and the system
// does not let us.
func newFrameReader(asked bool) (*frameReader, error) {
	if !asked && !verifying {
		return nil, nil
	}
	r, err := openFrames()
	if err != nil && asked {
		return nil, err
	}
	return r, nil
}

func openFrames() (*frameReader, error) {
	fail := func(err error, errno syscall.Errno) error {
		return &Error{Op: "verify", Err: err, Errno: errno, Detail: "page frame numbers of /proc/self/pagemap",
			Remedy: "needs CAP_SYS_ADMIN; or leave Config.Verify out"}
	}
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, fail(err, 0)
	}
	r := &frameReader{f: f}
	p := new(uint64)
	lo := uintptr(unsafe.Pointer(p)) &^ pageMask
	if got := r.read(lo, lo+pageMask+1); len(got) != 1 || got[0]&frameMask == 0 {
		f.Close() // without the capability the numbers read as 0
		return nil, fail(nil, syscall.EPERM)
	}
	return r, nil
}

// read returns an item for each page of [lo, hi), or nil.
func (r *frameReader) read(lo, hi uintptr) []uint64 {
	raw := make([]byte, (hi-lo)/(pageMask+1)*8)
	if n, err := r.f.ReadAt(raw, int64(lo/(pageMask+1)*8)); err != nil || n != len(raw) {
		return nil
	}
	frames := make([]uint64, len(raw)/8)
	for i := range frames {
		frames[i] = binary.NativeEndian.Uint64(raw[i*8:])
	}
	return frames
}

func (r *frameReader) Close() error {
	if r == nil {
		return nil
	}
	return r.f.Close()
}

// verifyFrames compares the pages of a request with the registered ones.
func (c *holdings) verifyFrames(q *request, e *entry) error {
	lo, hi := q.lo&^pageMask, (q.lo+uintptr(q.n)+pageMask)&^pageMask
	first := (lo - e.lo) / (pageMask + 1)
	for i, now := range c.frames.read(lo, hi) {
		was := e.frames[first+uintptr(i)]
		// A page that the kernel swapped out comes back as the same frame while it is pinned.
		if was&present == 0 || now&swapped != 0 || (now&present != 0 && now&frameMask == was&frameMask) {
			continue
		}
		if !e.ref.Valid() {
			return nil // it is changing at this moment, which the next Get will notice
		}
		c.stats.bad.Add(1)
		return &Error{Op: "get", Err: ErrStale, Detail: fmt.Sprintf("page %#x is frame %#x, registered as %#x in [%#x,%#x)",
			lo+uintptr(i)*(pageMask+1), now&frameMask, was&frameMask, e.lo, e.hi)}
	}
	return nil
}
