//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// handlersObject is called by hooks through pointers, so no symbol leads to it.
const handlersObject = "ibc_mem_handlers.o"

// artifacts are what tests compile, once: by file name, the compiler's arguments.
var artifacts = map[string][]string{
	"libmemevents.so": {"./build.sh", "-o", "$OUT"},
	"testmodes.so":    {"./build.sh", "-o", "$OUT", "-DIBC_MEM_TEST_MODES"},
	"counter.so":      {"gcc", "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-o", "$OUT", "testdata/counter.c", "-ldl"},
	"foreign.so":      {"gcc", "-shared", "-fPIC", "-O2", "-fno-builtin", "-D_GNU_SOURCE", "-Wl,-z,now", "-o", "$OUT", "testdata/foreign.c", "-lpthread"},
	"bigtls.so":       {"gcc", "-shared", "-fPIC", "-O2", "-ftls-model=initial-exec", "-o", "$OUT", "testdata/bigtls.c"},
	"strict.so":       {"gcc", "-shared", "-fPIC", "-O2", "-fno-builtin", "-D_GNU_SOURCE", "-Wl,-z,lazy", "-o", "$OUT", "testdata/strict_malloc.c"},
	"objects":         {"sh", "-c", "mkdir -p $OUT && for f in ibc_mem_*.c; do gcc -std=c11 -D_GNU_SOURCE -O2 -fPIC -c -o $OUT/${f%.c}.o $f || exit; done"},
	"static":          {"go", "build", "-o", "$OUT", "./testdata/report"},
	"staticcgo":       {"go", "build", "-ldflags", "-linkmode external -extldflags -static", "-o", "$OUT", "./testdata/report"},
	"pie":             {"go", "build", "-buildmode=pie", "-o", "$OUT", "./testdata/report"},
	"cshared.so":      {"go", "build", "-buildmode=c-shared", "-o", "$OUT", "./testdata/cshared"},
	"host":            {"gcc", "-O2", "-D_GNU_SOURCE", "-o", "$OUT", "testdata/host.c", "-ldl"},
	"plugin.so":       {"go", "build", "-buildmode=plugin", "-o", "$OUT", "./testdata/plugin"},
	"pluginhost":      {"go", "build", "-o", "$OUT", "./testdata/pluginhost"},
}

var built struct {
	mu   sync.Mutex
	dir  string
	done map[string]bool
}

func artifact(t testing.TB, name string, env ...string) string {
	t.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "memevents-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.done = dir, map[string]bool{}
		cleanup = func() { os.RemoveAll(dir) }
	}
	out := filepath.Join(built.dir, name)
	if built.done[name] {
		return out
	}
	args := slices.Clone(artifacts[name])
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$OUT", out)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, text)
	}
	built.done[name] = true
	return out
}

func preload(t *testing.T, names ...string) string {
	t.Helper()
	for i, name := range names {
		if !filepath.IsAbs(name) {
			names[i] = artifact(t, name)
		}
	}
	return "LD_PRELOAD=" + strings.Join(names, ":")
}

const (
	onlySymbols = EnvMonitors + "=symbols"
	withPatch   = EnvMonitors + "=symbols,patch"
)

// ---- each event once, whoever else is there ----

func TestPreloadedLibraryIsUsedAndEachEventCountsOnce_16(t *testing.T) {
	out := runHelper(t, []string{preload(t, "libmemevents.so"), onlySymbols}, "once")
	if !strings.Contains(out, "by preload") {
		t.Errorf("%s", out)
	}
	if out := runHelper(t, []string{onlySymbols}, "once"); !strings.Contains(out, "by symbols") {
		t.Errorf("%s", out)
	}
}

func TestOtherInterposersKeepTheirCalls_16(t *testing.T) {
	for _, libs := range [][]string{{"counter.so"}, {"counter.so", "libmemevents.so"}, {"libmemevents.so", "counter.so"}} {
		t.Run(strings.Join(libs, " "), func(t *testing.T) {
			runHelper(t, []string{preload(t, libs...), onlySymbols}, "once", "counter")
		})
	}
}

func TestJemalloc_16(t *testing.T) {
	found, _ := filepath.Glob("/usr/lib/*/libjemalloc.so.2")
	if len(found) == 0 {
		t.Skip("no libjemalloc.so.2 (package libjemalloc2)")
	}
	for _, libs := range [][]string{{found[0]}, {"libmemevents.so", found[0]}} {
		runHelper(t, []string{preload(t, libs...), onlySymbols}, "once")
		out := runHelper(t, []string{preload(t, libs...)}, "churn", artifact(t, "foreign.so"))
		if strings.Contains(out, "monitor userfaultfd  on") && !strings.Contains(out, "libc-free        userfaultfd") {
			t.Errorf("this allocator gives back when it likes, and the kernel tells of it all the same:\n%s", out)
		}
	}
}

func init() {
	// once: of one call, this package sees one event, and the other interposer one.
	helpers["once"] = func(args []string) error {
		runtime.LockOSThread()
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		debug.SetGCPercent(-1) // the runtime's own calls count too
		time.Sleep(10 * time.Millisecond)
		p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		r, err := claimSoon(w, p, CalledFromC)
		if err != nil {
			return fmt.Errorf("%w\n%v", err, Status())
		}
		if !w.Publish(r) {
			return errors.New("not published")
		}
		other := func(which uintptr) uintptr {
			if len(args) == 0 {
				return 0
			}
			return cFunc("ibc_counter", which)
		}
		munmaps, madvises := callsSeen(callMunmap), callsSeen(callMadvise)
		counted, countedAdvice, gen := other(0), other(1), Generation()
		cCall(callMadvise, p, pageSize, unix.MADV_DONTNEED)
		cCall(callMunmap, p, pageSize)
		if a, b := callsSeen(callMunmap)-munmaps, callsSeen(callMadvise)-madvises; a != 1 || b != 1 {
			return fmt.Errorf("saw %d munmap and %d madvise, want 1 and 1", a, b)
		}
		if Generation()-gen != 1 || r.Valid() {
			return errors.New("the range was not invalidated once")
		}
		if len(args) > 0 && (other(0)-counted != 1 || other(1)-countedAdvice != 1) {
			return fmt.Errorf("the other interposer saw %d munmap and %d madvise, want 1 and 1", other(0)-counted, other(1)-countedAdvice)
		}
		fmt.Println("by", Status().Classes[Munmap].By)
		return nil
	}
	// churn: eight threads in malloc, while ranges are watched.
	helpers["churn"] = func(args []string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		if _, err := cLoad(args[0]); err != nil {
			return err
		}
		deregister, deregistered := cSymbol("ibc_strict_calls") != nil, 0
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
				if r, err := w.Claim(p, p+pageSize, 0, 0); err == nil && !w.Publish(r) {
					w.Retire(r)
				}
				cCall(callMunmap, p, pageSize)
				for _, r := range w.Drain(nil) {
					for r.Refs() > 0 {
						r.Release()
					}
					if deregister {
						cFunc("ibv_dereg_mr", 0)
						deregistered++
					}
					w.Retire(r)
				}
			}
		}()
		cFunc("ibc_foreign_churn", 300)
		close(stop)
		<-done
		if deregister && deregistered > 0 && cFunc("ibc_strict_calls") > 0 {
			fmt.Println("strict malloc in force, deregistered")
		}
		fmt.Print(Status())
		return Verify()
	}
}

// ---- the order of things ----

func TestOnlyTheShippedOrderSurvives_08(t *testing.T) {
	env := []string{preload(t, "testmodes.so"), onlySymbols}
	for order, name := range []string{"shipped", "before only", "after only", "before and after"} {
		out, err := tryHelper(t, env, "order", fmt.Sprint(order))
		caught := strings.Contains(out, "stale hit")
		switch {
		case err != nil && !caught:
			t.Errorf("%s: %v\n%s", name, err, out)
		case caught != (order != 0):
			t.Errorf("%s: caught %v\n%s", name, caught, out)
		}
	}
}

func init() {
	helpers["order"] = func(args []string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		var order uint32
		fmt.Sscan(args[0], &order)
		p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		type cached struct {
			Ref
			registration
		}
		var entries []cached
		// The miss path of a cache: an entry, or none if the range is changing.
		get := func() {
			r, err := w.Claim(p, p+pageSize, 0, CalledFromC)
			if err != nil {
				return
			}
			reg := register(p, 1)
			if w.Publish(r) {
				r.Release()
				entries = append(entries, cached{r, reg})
			}
		}
		check := func(when string) error {
			for i, e := range entries {
				if e.Acquire() && e.lies() {
					return fmt.Errorf("stale hit on entry %d %s", i, when)
				}
			}
			return nil
		}
		for len(entries) == 0 {
			get()
		}
		setOrder(order)
		stopAt(p)
		done := make(chan struct{})
		go func() { cCall(callMunmap, p, pageSize); close(done) }()
		await := func(stage uint32) {
			for stopped() != stage {
				time.Sleep(time.Millisecond)
			}
		}
		await(1) // told, if the order tells before; the pages are still there
		get()
		goOnFrom(1)
		await(2) // the pages are gone; told, if the order tells after: not yet
		if _, _, e := unix.RawSyscall6(unix.SYS_MMAP, p, pageSize, rw, anonymous|unix.MAP_FIXED_NOREPLACE, noFD, 0); e != 0 {
			return e
		}
		if err := check("while munmap runs"); err != nil {
			return err
		}
		goOnFrom(2)
		<-done
		return check("after munmap")
	}
}

// ---- what a hook may call ----

// What a hook calls beside the next definition would hang or crash some day, on some thread. Every object that
// can be reached from one that defines a call of the libc is looked at.
func TestHooksCallNothingButTheNextDefinition_11(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(artifact(t, "objects"), "*.o"))
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	definedIn, undefined := map[string]string{}, map[string][]string{}
	for _, file := range files {
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.Symbols()
		if err != nil {
			t.Fatal(err)
		}
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
	for event := range uint32(callRemapFilePages + 1) {
		if name := eventName(event); definedIn[name] == "" {
			t.Errorf("no object defines %s", name)
		}
	}
	todo, reached := []string{handlersObject}, map[string]bool{}
	for event := range uint32(callRemapFilePages + 1) {
		todo = append(todo, definedIn[eventName(event)])
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
				t.Errorf("%s, which hooks reach, calls %s", object, name)
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
	if !strings.Contains(out, "strict malloc in force, deregistered") {
		t.Errorf("the strict malloc and ibv_dereg_mr were not called: nothing was tested\n%s", out)
	}
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

func init() {
	helpers["strict"] = func([]string) error {
		runtime.LockOSThread()
		cFunc("ibc_mem_test_break_rules") // mallocs with the flag set
		return nil
	}
}

func TestHooksInsideTheRuntimesOwnCalls_11(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := reserve(t, 1000*pageSize)
	refs := make([]Ref, 1000)
	for i := range refs {
		refs[i] = watch(t, w, page(p, i), page(p, i+1), CalledFromC)
	}
	before := callsSeen(callMmap)
	var keep [][]byte
	for range 64 { // 256 MiB in pieces
		keep = append(keep, make([]byte, 4<<20))
		runtime.GC()
	}
	runtime.KeepAlive(keep)
	if callsSeen(callMmap) == before {
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

// ---- inside the libc ----

func TestInsideTheLibc_03(t *testing.T) {
	foreign := artifact(t, "foreign.so")
	for _, c := range []struct {
		name, env string
		want      string
	}{
		{"symbols only", onlySymbols, "refused refused"},
		{"patched text", withPatch, "noticed noticed"},
		{"userfaultfd", EnvMonitors + "=symbols,userfaultfd", "noticed noticed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "patched text" && runtime.GOARCH != "amd64" {
				t.Skip("amd64 only")
			}
			if c.name == "userfaultfd" {
				needUffd(t)
			}
			if out := strings.TrimSpace(runHelper(t, []string{c.env}, "libc", foreign)); !strings.HasSuffix(out, c.want) {
				t.Errorf("%s, want %s", out, c.want)
			}
		})
	}
}

func init() {
	helpers["libc"] = func(args []string) error {
		if _, err := cLoad(args[0]); err != nil {
			return err
		}
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		try := func(size uintptr, change func(block uintptr)) (string, error) {
			block := cFunc("ibc_foreign_malloc", size)
			lo := (block + size/2) &^ (pageSize - 1)
			*ptr(lo) = 1
			r, err := claimSoon(w, lo, ForMalloc)
			if errors.Is(err, ErrUnwatched) {
				return "refused", nil
			}
			if err != nil {
				return "", err
			}
			if !w.Publish(r) {
				return "", errors.New("not published")
			}
			change(block)
			if r.Acquire() { // Valid would not look at the gate
				return "missed", nil
			}
			return "noticed", nil
		}
		free, err := try(1<<20, func(block uintptr) { cFunc("ibc_foreign_free", block) })
		if err != nil {
			return err
		}
		// So large that it always has a mapping of its own (mallopt(3)); grown until it moves.
		moved := false
		grow, err := try(40<<20, func(block uintptr) {
			for size := uintptr(80 << 20); size <= 10<<30 && !moved; size *= 2 {
				moved = cFunc("ibc_foreign_realloc", block, size) != block
			}
		})
		if err != nil {
			return err
		}
		if !moved && grow != "refused" {
			return errors.New("realloc never moved the block: nothing was tested")
		}
		fmt.Println(free, grow)
		return nil
	}
}

// The patched text ends in the kernel, where nobody but the hook turns a result into errno.
func TestFailuresThroughPatchedTextKeepTheirErrno_06(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the libc's text is patched on amd64 only")
	}
	runHelper(t, []string{EnvMonitors + "=patch"}, "errno")
}

func init() {
	helpers["errno"] = func([]string) error {
		Status()
		p, _ := cCall(callMmap, 0, 2*pageSize, rw, anonymous, noFD, 0)
		for _, c := range []struct {
			name  string
			event uint32
			args  []uintptr
			errno unix.Errno
		}{
			{"mmap", callMmap, []uintptr{p, pageSize, rw, anonymous | unix.MAP_FIXED_NOREPLACE, noFD, 0}, unix.EEXIST},
			{"munmap", callMunmap, []uintptr{p + 1, pageSize}, unix.EINVAL},
			{"madvise", callMadvise, []uintptr{p, pageSize, 4242}, unix.EINVAL},
			{"mremap", callMremap, []uintptr{p + 1, pageSize, pageSize, 0}, unix.EINVAL},
			{"shmdt", callShmdt, []uintptr{p + 1}, unix.EINVAL},
			{"brk", callBrk, []uintptr{1 << 62}, unix.ENOMEM},
		} {
			calls := callsSeen(c.event)
			if ret, errno := cCall(c.event, c.args...); errno != c.errno || uint32(ret) != ^uint32(0) {
				return fmt.Errorf("%s: result %#x, errno %d, want %d", c.name, ret, errno, c.errno)
			}
			if callsSeen(c.event) != calls+1 {
				return fmt.Errorf("%s did not come by once", c.name)
			}
		}
		return nil
	}
}

// ---- somebody spoils the hooks ----

func TestOverwrittenHooksAreFoundAndTurnTheCacheOff_15(t *testing.T) {
	foreign := artifact(t, "foreign.so")
	f, err := elf.Open(foreign)
	if err != nil {
		t.Fatal(err)
	}
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
			for _, want := range []string{"before: claimed", "after: refused", "lost " + c.lost, "kept " + c.kept, "another caller's entry: stale, drained, told"} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

// slotOfSymbol finds where an object keeps the address of a symbol.
func slotOfSymbol(t *testing.T, f *elf.File, name string) uint64 {
	t.Helper()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range f.Sections {
		if section.Type != elf.SHT_RELA {
			continue
		}
		data, err := section.Data()
		if err != nil {
			t.Fatal(err)
		}
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

func init() {
	helpers["spoil"] = func(args []string) error {
		if _, err := cLoad(args[0]); err != nil {
			return err
		}
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		claim := func(when string) {
			p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
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
		// Another caller's, on memory that nobody touches.
		other, err := NewWatcher(WatcherConfig{MaxDeadBytes: -1})
		if err != nil {
			return err
		}
		q, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		held, err := claimSoon(other, q, CalledFromC)
		if err != nil || !other.Publish(held) {
			return fmt.Errorf("not published: %v", err)
		}
		if Retest(); !held.Valid() {
			return errors.New("a Retest that lost nothing invalidated an entry")
		}
		var offset uintptr
		fmt.Sscan(args[2], &offset)
		var errno uintptr
		switch args[1] {
		case "relocation":
			errno = cFunc("ibc_foreign_relocate", offset)
		case "madvise":
			errno = cFunc("ibc_foreign_overwrite", uintptr(cSymbol("madvise")), 1)
		default:
			errno = cFunc("ibc_foreign_overwrite", uintptr(cSymbol("munmap")), 0)
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
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if told := other.Wait(ctx); !held.Acquire() && told == nil && len(other.Drain(nil)) == 1 {
			fmt.Println("another caller's entry: stale, drained, told")
		}
		return nil
	}
}

// ---- nothing works, and nothing breaks ----

func TestWithoutMonitorsClaimsAreRefusedAndTheReasonIsSaid_17(t *testing.T) {
	for _, c := range []struct{ env, why string }{
		{EnvMonitors + "=none", "not chosen"},
		{EnvEvents + "=no", "switched off"},
		{EnvEvents + "=Off", "switched off"},
		{EnvEvents + "=nein", "use yes or no"},
		{EnvMonitors + "=symbls", `there is no monitor "symbls"`},
	} {
		out := runHelper(t, []string{c.env}, "refused")
		if !strings.Contains(out, c.why) || !strings.Contains(out, "refused") {
			t.Errorf("%s:\n%s", c.env, out)
		}
	}
}

func init() {
	helpers["refused"] = func([]string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		_, err = w.Claim(p, p+pageSize, 0, CalledFromC)
		if !errors.Is(err, ErrUnwatched) {
			return fmt.Errorf("claim: %v", err)
		}
		fmt.Println("refused", err)
		fmt.Print(Retest())
		cCall(callMunmap, p, pageSize)
		if len(w.Drain(nil)) != 0 {
			return errors.New("drained something")
		}
		return w.Close()
	}
}

// Where the system forbids userfaultfd, the report says so, hooks go on, and what only the kernel could tell of
// is refused.
func TestWhereUserfaultfdIsFilteredTheReportSaysWhy_17(t *testing.T) {
	out := runHelper(t, nil, "unprivileged")
	for _, want := range []string{"monitor userfaultfd  off  userfaultfd: ", "class   munmap           symbols", "ForGoMap refused", "CalledFromC claimed"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func init() {
	// unprivileged: without system calls that open a userfaultfd, as container runtimes filter them.
	helpers["unprivileged"] = func([]string) error {
		if err := forbidUserfaultfd(); err != nil {
			return err
		}
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		fmt.Print(Status())
		p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		if _, err := w.Claim(p, p+pageSize, 0, ForGoMap); errors.Is(err, ErrUnwatched) {
			fmt.Println("ForGoMap refused")
		}
		if r, err := claimSoon(w, p, CalledFromC); err == nil {
			fmt.Println("CalledFromC claimed")
			w.Retire(r)
		}
		return nil
	}
}

func TestStaticBinary_17(t *testing.T) {
	out, err := exec.Command(artifact(t, "static", "CGO_ENABLED=0")).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("not built")) || !bytes.Contains(out, []byte("claim: memevents: claim: changes of the range would not be noticed")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// With cgo and without a loader the hooks cannot be tested, so nothing is claimed on their word.
func TestStaticBinaryWithCgo_17(t *testing.T) {
	out, err := exec.Command(artifact(t, "staticcgo")).CombinedOutput()
	for _, want := range []string{"monitor symbols      off  the executable is linked statically", "claim: memevents: claim: changes of the range would not be noticed"} {
		if err != nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q: %v\n%s", want, err, out)
		}
	}
}

func TestPositionIndependentExecutable_17(t *testing.T) {
	out, err := exec.Command(artifact(t, "pie")).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("munmap           symbols")) || !bytes.Contains(out, []byte("claim: ok")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// In a C program that loads Go, the program's and the libc's symbols come first: relocations are changed, and
// those of libraries that come later.
func TestSharedLibraryInACProgram_17(t *testing.T) {
	host, lib, foreign := artifact(t, "host"), artifact(t, "cshared.so"), artifact(t, "foreign.so")
	run := func(env ...string) string {
		cmd := exec.Command(host, lib, foreign)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v\n%s", env, err, out)
		}
		return string(out)
	}
	if out := run(EnvMonitors + "=symbols,reloc"); !strings.Contains(out, "munmap           reloc") || !strings.Contains(out, "later library: noticed") {
		t.Errorf("%s", out)
	}
	if out := run(EnvMonitors + "=symbols"); strings.Contains(out, "munmap           symbols") || !strings.Contains(out, "later library: refused") {
		t.Errorf("%s", out)
	}
	if out := run(preload(t, "libmemevents.so"), EnvMonitors+"=symbols"); !strings.Contains(out, "munmap           preload") || !strings.Contains(out, "later library: noticed") {
		t.Errorf("%s", out)
	}
}

func TestPlugin_17(t *testing.T) {
	cmd := exec.Command(artifact(t, "pluginhost"), artifact(t, "plugin.so"))
	cmd.Env = append(os.Environ(), EnvMonitors+"=symbols,reloc")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("munmap           reloc")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// ---- at odd times ----

func TestSignalHandlerThatUnmapsInsideAHook_22(t *testing.T) {
	runHelper(t, []string{onlySymbols}, "signals", artifact(t, "foreign.so"))
}

func init() {
	helpers["signals"] = func(args []string) error {
		if _, err := cLoad(args[0]); err != nil {
			return err
		}
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		r, err := claimSoon(w, p, CalledFromC)
		if err != nil {
			return err
		}
		if n := cFunc("ibc_foreign_signals", 20000); n == 0 {
			return errors.New("no handler ran: nothing was tested")
		}
		if !w.Publish(r) {
			return errors.New("somebody else's calls invalidated the entry")
		}
		return Verify()
	}
}

// The libraries' constructors run before ours, their destructors after main; Go's exit runs none, C's does.
func TestBeforeConstructorsAndAfterMain_23(t *testing.T) {
	runHelper(t, []string{preload(t, "foreign.so", "libmemevents.so"), onlySymbols}, "once")
	cmd := exec.Command(artifact(t, "host"), "exit")
	cmd.Env = append(os.Environ(), preload(t, "libmemevents.so", "foreign.so"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The loader unmaps a library by raw calls of its own. The kernel can tell of that for memory without a file
// behind it; initialised data has one, and is refused.
func TestUnloadedLibrary_23(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "unload", artifact(t, "foreign.so"))
}

func init() {
	helpers["unload"] = func(args []string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		seen := 0
		for range 1000 {
			lib, err := cLoad(args[0])
			if err != nil {
				return err
			}
			inside := func(bss uintptr) uintptr {
				return (cFunc("ibc_foreign_address", bss) + 2*pageSize) &^ (pageSize - 1)
			}
			data := inside(0)
			if _, err := w.Claim(data, data+pageSize, 0, Set(RawUnmap)); !errors.Is(err, ErrUnwatched) {
				return fmt.Errorf("initialised data: %v", err)
			}
			bss := inside(1)
			*ptr(bss) = 1
			r, err := claimSoon(w, bss, Set(RawUnmap))
			if err != nil {
				return err
			}
			if !w.Publish(r) { // the last library's end was told of late
				w.Retire(r)
				cUnload(lib)
				continue
			}
			r.Release()
			cUnload(lib)
			if r.Acquire() {
				return errors.New("a hit on an unloaded library")
			}
			seen++
			for _, r := range w.Drain(nil) {
				w.Retire(r)
			}
		}
		if seen < 900 {
			return fmt.Errorf("only %d of 1000 were watched", seen)
		}
		return nil
	}
}

// A child of fork has a copy of the table and shares the descriptors: its hooks must not touch the parent's.
func TestForkedChildLeavesTheParentAlone_21(t *testing.T) {
	runHelper(t, []string{onlySymbols}, "fork", artifact(t, "foreign.so"))
}

func init() {
	helpers["fork"] = func(args []string) error {
		if _, err := cLoad(args[0]); err != nil {
			return err
		}
		w, err := NewWatcher(WatcherConfig{MaxDeadBytes: -1})
		if err != nil {
			return err
		}
		p, _ := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		r, err := claimSoon(w, p, CalledFromC)
		if err != nil || !w.Publish(r) {
			return fmt.Errorf("not published: %v", err)
		}
		if status := cFunc("ibc_foreign_fork", p, pageSize); status != 0 {
			return fmt.Errorf("the child ended with status %#x", status)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := w.Wait(ctx); err == nil {
			return errors.New("the child's munmap woke the parent")
		}
		if !r.Acquire() {
			return errors.New("the child's munmap invalidated the parent's entry")
		}
		cCall(callMunmap, p, pageSize) // the control: the parent's own does both
		if err := w.Wait(context.Background()); err != nil || r.Acquire() {
			return fmt.Errorf("the parent's munmap: %v", err)
		}
		return nil
	}
}

// What Go code finds in a child that C code forked: no hit on the copied table, and errors, whatever the parent's
// other threads were doing. The parent's entries stay.
func TestForkedChildFindsNothingValid_21(t *testing.T) {
	runHelper(t, nil, "forkgo", artifact(t, "foreign.so"))
	runHelper(t, []string{preload(t, "libmemevents.so")}, "forkgo", artifact(t, "foreign.so"))
}

func init() {
	helpers["forkgo"] = func(args []string) error {
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a child has one thread, and the collector wants more
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))  // so that it finds a processor that nobody holds
		if _, err := cLoad(args[0]); err != nil {
			return err
		}
		w, err := NewWatcher(WatcherConfig{MaxDeadBytes: -1})
		if err != nil {
			return err
		}
		p, _ := cCall(callMmap, 0, 102*pageSize, rw, anonymous, noFD, 0)
		var refs []Ref
		for i := range 100 {
			r, err := claimSoon(w, page(p, i), CalledFromC)
			if err != nil || !w.Publish(r) {
				return fmt.Errorf("not published: %v", err)
			}
			r.Release()
			refs = append(refs, r)
		}
		unfinished, err := claimSoon(w, page(p, 100), CalledFromC)
		if err != nil {
			return err
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { // so that a child may find the table's lock held
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if r, err := w.ClaimLive(page(p, 101), page(p, 102), 0, CalledFromC); err == nil {
					w.Retire(r)
				}
			}
		}()
		// Now and then Go itself hangs in a child, for want of its other threads: these say nothing.
		spoke := 0
		for range 20 {
			err := forkAndLook(w, refs, unfinished, page(p, 101))
			if err == nil {
				spoke++
			} else if !errors.Is(err, errSilent) {
				return err
			}
		}
		if spoke < 10 {
			return fmt.Errorf("%d of 20 children said something", spoke)
		}
		close(stop)
		<-done
		for _, r := range refs {
			if !r.Acquire() {
				return errors.New("a child invalidated the parent's entry")
			}
			r.Release()
		}
		if len(w.Drain(nil)) != 0 {
			return errors.New("the parent drained something")
		}
		return Verify()
	}
}

var errSilent = errors.New("the child said nothing")

// forkAndLook forks, and returns what the child found wrong.
func forkAndLook(w *Watcher, refs []Ref, unfinished Ref, fresh uintptr) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	pid := int(int32(cFunc("ibc_foreign_bare_fork")))
	if pid == 0 {
		word := "right"
		if err := lookFromChild(w, refs, unfinished, fresh); err != nil {
			word = err.Error()
		}
		unix.Write(pipe[1], []byte(word))
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	unix.Close(pipe[1])
	said := make([]byte, 512)
	fds := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 2000)
	if n == 0 {
		unix.Kill(pid, unix.SIGKILL)
	}
	unix.Wait4(pid, nil, 0, nil)
	if n != 1 {
		return fmt.Errorf("%w: %v", errSilent, err)
	}
	if n, _ = unix.Read(pipe[0], said); string(said[:max(n, 0)]) != "right" {
		return fmt.Errorf("in the child: %q", said[:max(n, 0)])
	}
	return nil
}

func lookFromChild(w *Watcher, refs []Ref, unfinished Ref, fresh uintptr) error {
	for _, r := range refs {
		if r.Acquire() {
			return errors.New("a hit")
		}
	}
	if w.Publish(unfinished) {
		return errors.New("published")
	}
	w.Retire(unfinished)
	_, claim := w.Claim(fresh, fresh+pageSize, 0, CalledFromC)
	_, live := w.ClaimLive(fresh, fresh+pageSize, 0, CalledFromC)
	_, another := NewWatcher(WatcherConfig{})
	_, subscribe := Subscribe(0)
	_, protect := Protect(fresh, fresh+pageSize)
	for call, err := range map[string]error{
		"claim": claim, "claim of live memory": live, "new watcher": another, "subscribe": subscribe, "protect": protect,
		"wait": w.Wait(context.Background()), "close": w.Close(), "verify": Verify(),
	} {
		if !errors.Is(err, ErrForked) {
			return fmt.Errorf("%s: %v", call, err)
		}
	}
	if len(w.Drain(nil)) != 0 || !Changing(fresh, fresh+pageSize) {
		return errors.New("drained, or not changing")
	}
	if everywhere, somewhere := Retest().Covered(); everywhere|somewhere != 0 {
		return fmt.Errorf("covered: %v", everywhere|somewhere)
	}
	return nil
}
