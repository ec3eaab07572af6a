//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"debug/elf"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/memtest"
)

// handlersObject is called by hooks through pointers, so no symbol leads to it.
const handlersObject = "ibc_mem_handlers.o"

// What a hook calls beside the next definition would hang or crash some day, on some thread. Every
// object that can be reached from one that defines a call of the libc is looked at.
func TestHooksCallNothingButTheNextDefinition_11(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(artifact(t, "objects"), "*.o"))
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	definedIn, undefined := map[string]string{}, map[string][]string{}
	for _, file := range files {
		f, err := elf.Open(file)
		noError(t, err)
		defer f.Close()
		symbols, err := f.Symbols()
		noError(t, err)
		object := filepath.Base(file)
		for _, s := range symbols {
			switch {
			case s.Section == elf.SHN_UNDEF:
				undefined[object] = append(undefined[object], s.Name)
			case elf.ST_BIND(s.Info) != elf.STB_LOCAL:
				definedIn[s.Name] = object
			}
		}
	}
	for event := range uint32(memtest.RemapFilePages + 1) {
		if name := memtest.Name(event); definedIn[name] == "" {
			t.Errorf("no object defines %s", name)
		}
	}
	todo, reached := []string{handlersObject}, map[string]bool{}
	for event := range uint32(memtest.RemapFilePages + 1) {
		todo = append(todo, definedIn[memtest.Name(event)])
	}
	for ; len(todo) > 0; todo = todo[1:] {
		object := todo[0]
		if reached[object] {
			continue
		}
		reached[object] = true
		for _, name := range undefined[object] {
			switch name {
			case "", "_GLOBAL_OFFSET_TABLE_", "__curbrk", "__errno_location": // data, and the address of data
				continue
			}
			if to := definedIn[name]; to != "" {
				todo = append(todo, to)
			} else {
				t.Errorf("%s, which hooks need, calls %s", object, name)
			}
		}
	}
	for _, object := range []string{"ibc_mem_hooks.o", "ibc_mem_plan.o", "ibc_mem_next.o", "ibc_mem_window.o", "ibc_mem_log.o"} {
		if !reached[object] {
			t.Errorf("%s was not looked at", object)
		}
	}
}

func TestHooksNeverCallMalloc_10(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the libc's text is patched on amd64 only")
	}
	env := []string{preload(t, "testmodes.so", "strict.so"), withPatch}
	out := runHelper(t, env, "churn", artifact(t, "foreign.so"))
	wants(t, out, "strict malloc in force, deregistered")
	if !strings.Contains(out, "libc-free        patch") {
		t.Errorf("the churn did not go through the hooks:\n%s", out)
	}
}

// The strict malloc must be able to catch a call.
func TestStrictMallocIsInForce_10(t *testing.T) {
	out, err := tryHelper(t, []string{preload(t, "testmodes.so", "strict.so"), onlySymbols}, "strict")
	if err == nil || !strings.Contains(out, "called from a hook") {
		t.Errorf("%v\n%s", err, out)
	}
}

var _ = helper("strict", func(t testing.TB, _ []string) error {
	runtime.LockOSThread()
	memtest.Func("ibc_mem_test_break_rules") // mallocs with the flag set
	return nil
})

func TestHooksInsideTheRuntimesOwnCalls_11(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := reserve(t, 1000*pageSize)
	refs := make([]Ref, 1000)
	for i := range refs {
		refs[i] = watch(t, w, page(p, i), page(p, i+1), CalledFromC)
	}
	before := memtest.CallsSeen(memtest.Mmap)
	var keep [][]byte
	// 256 MiB in pieces, or until the heap has to grow
	for i := 0; i < 64 || i < 1024 && memtest.CallsSeen(memtest.Mmap) == before; i++ {
		keep = append(keep, make([]byte, 4<<20))
		runtime.GC()
	}
	runtime.KeepAlive(keep)
	if memtest.CallsSeen(memtest.Mmap) == before {
		t.Error("the runtime's mmap did not come by: nothing was tested")
	}
	for _, r := range refs {
		if !r.Valid() {
			t.Fatal("the runtime's calls invalidated", r)
		}
	}
	evict(t, w, refs...)
	keep = nil
	debug.FreeOSMemory()
}
