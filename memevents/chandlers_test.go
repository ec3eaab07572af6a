//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// A library of C or C++ has its handlers called, in the order of their priorities, whichever
// image's hooks are the ones that work, and whether it came before Go looked for them or after.
func TestHandlersOfALibraryAreCalledInOrder_16(t *testing.T) {
	for _, lib := range []string{"handler.so", "handlercc.so"} {
		for _, hooks := range []string{"symbols", "preload", "preload, asked for at the executable"} {
			for _, when := range []string{"before", "after"} {
				t.Run(lib+" "+hooks+" "+when, func(t *testing.T) {
					env := []string{onlySymbols}
					if hooks != "symbols" {
						env = append(env, preload(t, "libmemevents.so"))
					}
					runHelper(t, env, "handlers", artifact(t, lib), when, hooks)
				})
			}
		}
	}
}

var _ = helper("handlers", func(t testing.TB, args []string) error {
	if args[1] == "after" {
		Status()
	}
	load(t, args[0])
	p := newPages(1)
	if args[2] == "preload" {
		memtest.Func("ibc_handler_add", p)
	} else { // they are the executable's, which does not export them
		memtest.Func("ibc_handler_add", p, memtest.Root(), memtest.AddHandler())
	}
	w := newWatcher(t, WatcherConfig{})
	r := watchPage(t, w, p, CalledFromC)
	memtest.Func("ibc_handler_refuse", 1)
	if _, errno := memtest.Call(memtest.Munmap, p, pageSize); errno != unix.EBUSY || !r.Valid() {
		return fmt.Errorf("munmap that a handler refuses: %v; valid %v", errno, r.Valid())
	}
	memtest.Func("ibc_handler_refuse", 0)
	memtest.Func("ibc_handler_order")
	if _, errno := memtest.Call(memtest.Munmap, p, pageSize); errno != 0 || r.Valid() {
		return fmt.Errorf("munmap: %v; valid %v", errno, r.Valid())
	}
	if got := memtest.Func("ibc_handler_order"); got != 1234 {
		return fmt.Errorf("the handlers ran in the order %d, want 1234, each once", got)
	}
	memtest.Func("ibc_handler_deny", 1)
	if ret, errno := memtest.Call(memtest.Munmap, p, pageSize); ret != ^uintptr(0) || errno != unix.EDOM {
		return fmt.Errorf("munmap that a handler answers after the kernel: %d, %v", int(ret), errno)
	}
	return nil
})
