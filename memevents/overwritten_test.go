//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestOverwrittenHooksTurnTheCacheOff_15(t *testing.T) {
	foreign := artifact(t, "foreign.so")
	f, err := elf.Open(foreign)
	noError(t, err)
	defer f.Close()
	for _, c := range []struct{ how, lost, kept string }{
		{"munmap", "munmap", "madvise"},
		{"madvise", "madvise", "munmap"},
		{"relocation", "munmap", "madvise"},
	} {
		if runtime.GOARCH != "amd64" && c.how != "relocation" {
			continue // the jump that is written is of amd64
		}
		t.Run(c.how, func(t *testing.T) {
			out := runHelper(t, []string{onlySymbols}, "spoil", foreign, c.how, fmt.Sprint(slotOfSymbol(t, f, "munmap")))
			wants(t, out, "before: claimed", "after: refused", "lost "+c.lost, "kept "+c.kept, "another caller's entry: stale, drained, woken")
		})
	}
}

// slotOfSymbol finds where an object keeps the address of a symbol.
func slotOfSymbol(t *testing.T, f *elf.File, name string) uint64 {
	t.Helper()
	symbols, err := f.DynamicSymbols()
	noError(t, err)
	for _, section := range f.Sections {
		if section.Type != elf.SHT_RELA {
			continue
		}
		data, err := section.Data()
		noError(t, err)
		for ; len(data) >= 24; data = data[24:] {
			offset, info := f.ByteOrder.Uint64(data), f.ByteOrder.Uint64(data[8:])
			if i := info >> 32; i > 0 && symbols[i-1].Name == name {
				return offset
			}
		}
	}
	t.Fatal("no relocation of", name)
	return 0
}

var _ = helper("spoil", func(t testing.TB, args []string) error {
	load(t, args[0])
	w := newWatcher(t, WatcherConfig{})
	claim := func(when string) {
		p := newPages(1)
		r, err := claimSoon(w, p, CalledFromC)
		switch {
		case err == nil:
			w.Retire(r)
			fmt.Println(when + ": claimed")
		case errors.Is(err, ErrUnwatched):
			fmt.Println(when+": refused:", err)
		default:
			fmt.Println(when+":", err)
		}
	}
	claim("before")
	// Another caller's, on memory that is left in peace.
	other := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
	q := newPages(1)
	held := watchPage(t, other, q, CalledFromC)
	if Retest(); !held.Valid() {
		return errors.New("a Retest that lost nothing invalidated an entry")
	}
	var offset uintptr
	fmt.Sscan(args[2], &offset)
	var errno uintptr
	switch args[1] {
	case "relocation":
		errno = memtest.Func("ibc_foreign_relocate", offset)
	case "madvise":
		errno = memtest.Func("ibc_foreign_overwrite", uintptr(memtest.Symbol("madvise")), 1)
	default:
		errno = memtest.Func("ibc_foreign_overwrite", uintptr(memtest.Symbol("munmap")), 0)
	}
	if errno != 0 {
		return unix.Errno(errno)
	}
	for _, c := range Retest().Classes {
		word := "kept"
		if c.By == "" {
			word = "lost"
		}
		fmt.Println(word, c.Class, c.Why)
	}
	claim("after")
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if reported := other.Wait(ctx); !held.Acquire() && reported == nil && len(other.Drain(nil)) == 1 {
		fmt.Println("another caller's entry: stale, drained, woken")
	}
	return nil
})
