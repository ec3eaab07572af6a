//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/internal/racetest"
)

func TestWithoutMonitorsClaimsAreRefused_17(t *testing.T) {
	for _, c := range []struct{ env, why string }{
		{EnvMonitors + "=none", "not chosen"},
		{EnvEvents + "=no", "switched off"},
		{EnvEvents + "=Off", "switched off"},
		{EnvEvents + "=nein", "use yes or no"},
		{EnvMonitors + "=symbls", `there is no monitor "symbls" (` + EnvMonitors + `)`},
	} {
		out := runHelper(t, []string{c.env}, "refused")
		if !strings.Contains(out, c.why) || !strings.Contains(out, "refused") {
			t.Errorf("%s:\n%s", c.env, out)
		}
	}
}

var _ = helper("refused", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	p := newPages(1)
	_, err := w.Claim(p, p+pageSize, 0, CalledFromC)
	if !errors.Is(err, ErrUnwatched) {
		return fmt.Errorf("claim: %v", err)
	}
	fmt.Println("refused", err)
	fmt.Print(Retest())
	memtest.Call(memtest.Munmap, p, pageSize)
	if len(w.Drain(nil)) != 0 {
		return errors.New("drained something")
	}
	return w.Close()
})

// Where the system forbids userfaultfd, the report says so, hooks go on, and what only the kernel
// could report is refused.
func TestReportOfFilteredUserfaultfd_17(t *testing.T) {
	wants(t, runHelper(t, nil, "unprivileged"), "monitor userfaultfd  off  userfaultfd: ", "class   munmap           symbols", "ForGoMap refused", "CalledFromC claimed")
}

var _ = helper("unprivileged", func(t testing.TB, _ []string) error {
	noError(t, memtest.ForbidUserfaultfd())
	w := newWatcher(t, WatcherConfig{})
	fmt.Print(Status())
	p := newPages(1)
	if _, err := w.Claim(p, p+pageSize, 0, ForGoMap); errors.Is(err, ErrUnwatched) {
		fmt.Println("ForGoMap refused")
	}
	if r, err := claimSoon(w, p, CalledFromC); err == nil {
		fmt.Println("CalledFromC claimed")
		w.Retire(r)
	}
	return nil
})

// So does the kernel on arm64 before Linux 6.10. No privilege helps.
func TestReportOfUffdWithoutWriteProtect_17(t *testing.T) {
	needUffd(t)
	wants(t, runHelper(t, nil, "nowriteprotect"), "UFFDIO_API: invalid argument (the kernel's has no write-protect mode", "class   raw-unmap        -")
}

var _ = helper("nowriteprotect", func(t testing.TB, _ []string) error {
	const uffdioAPI = 0xc018aa3f
	noError(t, memtest.FilterCalls(unix.EINVAL,
		memtest.FilterLoad(memtest.CallNumber), memtest.FilterIf(unix.SYS_IOCTL, 0, 2),
		memtest.FilterLoad(memtest.SecondArgument), memtest.FilterIf(uffdioAPI, 1, 0)))
	fmt.Print(Status())
	return nil
})

// runProgram runs a program with more environment, and returns what it printed.
func runProgram(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v\n%s", env, err, out)
	}
	return string(out)
}

const unnoticed = "claim: memevents: claim: changes of the range would not be noticed"

func TestStaticBinary_17(t *testing.T) {
	wants(t, runProgram(t, nil, artifact(t, "static", "CGO_ENABLED=0")), "not built", unnoticed)
}

// With cgo and without a loader the hooks cannot be tested, so nothing is claimed.
func TestStaticBinaryWithCgo_17(t *testing.T) {
	wants(t, runProgram(t, nil, artifact(t, "staticcgo")), "monitor symbols      off  the executable is linked statically", unnoticed)
}

func TestPositionIndependentExecutable_17(t *testing.T) {
	wants(t, runProgram(t, nil, artifact(t, "pie")), "munmap           symbols", "claim: ok")
}

// runHost runs a C program that loads Go and then another library.
func runHost(t *testing.T, library string, env ...string) string {
	t.Helper()
	return runProgram(t, env, artifact(t, "host"), artifact(t, "cshared.so"), library)
}

const withReloc = EnvMonitors + "=symbols,reloc"

// In a C program that loads Go, the program's and the libc's symbols come first: relocations are
// changed, and those of libraries that come later.
func TestSharedLibraryInACProgram_17(t *testing.T) {
	foreign := artifact(t, "foreign.so")
	wants(t, runHost(t, foreign, withReloc), "munmap           reloc", "later library: noticed")
	out := runHost(t, foreign, onlySymbols)
	if wants(t, out, "later library: refused"); strings.Contains(out, "munmap           symbols") {
		t.Errorf("%s", out)
	}
	wants(t, runHost(t, foreign, preload(t, "libmemevents.so"), onlySymbols), "munmap           preload", "later library: noticed")
}

// Where relocations are changed, calls go on to the definition they led to before.
func TestRelocationsKeepOtherInterposers_16(t *testing.T) {
	wants(t, runHost(t, artifact(t, "foreign.so"), withReloc, preload(t, "counter.so")),
		"munmap           reloc", "interposer: 1\n", "later library: noticed")
}

// A later library may be bound to a definition that passes by here. Then nothing stays valid, and
// the next claim tests anew.
func TestALaterLibraryThatPassesByEndsTheWatch_15(t *testing.T) {
	artifact(t, "past.so")
	wants(t, runHost(t, artifact(t, "usespast.so"), withReloc, "IBC_TEST_DEEPBIND=1"),
		"munmap           reloc", "later library: noticed", "no longer watched", "needs nothing: <nil>")
	wants(t, runHost(t, artifact(t, "foreign.so"), withReloc), "watched again") // one that does not
}

// Where pages are larger than a library was linked for, its part that is read-only after relocation
// ends within a page, and the loader leaves that page writable.
func TestPageLeftWritableByTheLoaderStaysSo_17(t *testing.T) {
	lib, err := os.ReadFile(artifact(t, "pointers.so"))
	noError(t, err)
	f, err := elf.NewFile(bytes.NewReader(lib))
	noError(t, err)
	i := slices.IndexFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_GNU_RELRO })
	if i < 0 {
		t.Fatal("nothing of the library is read-only after relocation")
	}
	// Of Elf64_Ehdr.e_phoff, Elf64_Phdr, its p_memsz (elf(5))
	const headers, size, memsz = 0x20, 56, 40
	at := int(binary.NativeEndian.Uint64(lib[headers:])) + i*size + memsz
	binary.NativeEndian.PutUint64(lib[at:], f.Progs[i].Memsz+256)
	path := filepath.Join(t.TempDir(), "pointers.so")
	noError(t, os.WriteFile(path, lib, 0o755))
	wants(t, runHost(t, path, withReloc), "later library: noticed")
}

// A library may keep the address of a call in its data, and call through that.
func TestPointersInALibrarysDataLeadHere_17(t *testing.T) {
	for _, env := range [][]string{{withReloc}, {withReloc, preload(t, "pointers.so")}} { // later, and earlier
		wants(t, runHost(t, artifact(t, "pointers.so"), env...), "munmap           reloc", "library: noticed", "watched again")
	}
}

// A program that forks before Go comes, as servers do, has as good a table as any: the preloaded
// library's was not in use.
func TestPreloadServesAChildForkedBeforeGo_21(t *testing.T) {
	wants(t, runHost(t, artifact(t, "foreign.so"), onlySymbols, preload(t, "libmemevents.so"), "IBC_TEST_FORK=1"),
		"munmap           preload", "later library: noticed", "watched again")
}

func TestPlugin_17(t *testing.T) {
	wants(t, runProgram(t, []string{withReloc}, artifact(t, "pluginhost"), artifact(t, "plugin.so")), "munmap           reloc")
}

// A library's constructor runs before the library's relocations can be changed. What it takes away
// is over when dlopen returns.
func TestConstructorOfALaterLibraryThatUnmaps_17(t *testing.T) {
	wants(t, runHost(t, artifact(t, "ctor.so"), withReloc), "constructor: noticed")
}

// Where the kernel maps nothing more (vm.max_map_count, RLIMIT_AS) the self-test covers nothing,
// and does no harm.
func TestSelfTestWithoutMemoryCoversNothing_17(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector maps pages for itself, and dies where it cannot")
	}
	wants(t, runHelper(t, nil, "nomaps"), "cannot allocate memory")
}

var _ = helper("nomaps", func(t testing.TB, _ []string) error {
	if _, somewhere := Status().Covered(); !somewhere.Has(CalledFromC) {
		return fmt.Errorf("covered at first: %v", somewhere)
	}
	noError(t, forbidSmallMaps())
	r := Retest()
	if _, somewhere := r.Covered(); somewhere.Has(Set(Munmap)) || somewhere.Has(Set(Madvise)) || somewhere.Has(Set(RawUnmap)) {
		return fmt.Errorf("covered: %v", somewhere)
	}
	fmt.Print(r)
	return nil
})
