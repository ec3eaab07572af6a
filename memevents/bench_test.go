//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkMunmap compares munmap in C through the hook and straight to the kernel; hook-ns is the
// difference, the price of listening. Nothing is mapped there, so the kernel's part is as small as
// it gets.
func BenchmarkMunmap(b *testing.B) {
	for _, entries := range []int{0, 1, 1000, 10000} {
		b.Run(fmt.Sprintf("entries=%d", entries), func(b *testing.B) {
			w := newWatcher(b, WatcherConfig{})
			base := reserve(b, uintptr(entries+1)*pageSize)
			refs := make([]Ref, entries)
			for i := range refs {
				refs[i] = watch(b, w, page(base, i), page(base, i+1), CalledFromC)
			}
			defer evict(b, w, refs...)
			b.ResetTimer()
			hooked, raw := TimeUnmap(b.N, false)
			b.ReportMetric(float64(hooked-raw)/float64(b.N), "hook-ns")
			b.ReportMetric(float64(raw)/float64(b.N), "raw-ns")
		})
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	w := newWatcher(b, WatcherConfig{})
	p := reserve(b, pageSize)
	r := watch(b, w, p, page(p, 1), CalledFromC)
	defer evict(b, w, r)
	for b.Loop() {
		if !r.Acquire() {
			b.Fatal("miss")
		}
		r.Release()
	}
}

func BenchmarkClaimPublishEvictRetire(b *testing.B) {
	needs := map[string]Classes{"hooks": CalledFromC, "userfaultfd": ForGoMap}
	for name, need := range needs {
		b.Run(name, func(b *testing.B) {
			if name == "userfaultfd" {
				needUffd(b)
			}
			w := newWatcher(b, WatcherConfig{})
			p := mapPages(b, 1)
			for b.Loop() {
				r := watch(b, w, p, page(p, 1), need)
				w.Evict(r)
				w.Retire(r)
			}
		})
	}
}

// BenchmarkRawUnmap is what userfaultfd costs the caller: it waits until its event was read.
func BenchmarkRawUnmap(b *testing.B) {
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprintf("watched=%v", watched), func(b *testing.B) {
			if watched {
				needUffd(b)
			}
			w := newWatcher(b, WatcherConfig{})
			for b.Loop() {
				p, _, _ := unix.Syscall6(unix.SYS_MMAP, 0, pageSize, rw, anonymous, noFD, 0)
				var r Ref
				if watched {
					r = watch(b, w, p, page(p, 1), ForGoMap)
				}
				unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
				for watched && len(w.Drain(nil)) == 0 {
				}
				if watched {
					w.Retire(r)
				}
			}
		})
	}
}

// The hit path allocates nothing.
func TestHitAllocatesNothing(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := reserve(t, pageSize)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	defer evict(t, w, r)
	var dead []Ref
	if n := testing.AllocsPerRun(1000, func() {
		if r.Acquire() {
			r.Release()
		}
		dead = w.Drain(dead[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
