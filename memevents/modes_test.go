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

	"github.com/ibconduit/conduit/internal/racetest"
	"golang.org/x/sys/unix"
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
	cCall(callMunmap, p, pageSize)
	if len(w.Drain(nil)) != 0 {
		return errors.New("drained something")
	}
	return w.Close()
})

// Where the system forbids userfaultfd, the report says so, hooks go on, and what only the kernel
// could report is refused.
func TestReportOfFilteredUserfaultfd_17(t *testing.T) {
	out := runHelper(t, nil, "unprivileged")
	for _, want := range []string{"monitor userfaultfd  off  userfaultfd: ", "class   munmap           symbols", "ForGoMap refused", "CalledFromC claimed"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

var _ = helper("unprivileged", func(t testing.TB, _ []string) error {
	noError(t, forbidUserfaultfd())
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
	out := runHelper(t, nil, "nowriteprotect")
	for _, want := range []string{"UFFDIO_API: invalid argument (the kernel's has no write-protect mode", "class   raw-unmap        -"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

var _ = helper("nowriteprotect", func(t testing.TB, _ []string) error {
	const uffdioAPI = 0xc018aa3f
	if err := installFilter([]unix.SockFilter{
		bpfLoad(callNumber), bpfIf(unix.SYS_IOCTL, 0, 2),
		bpfLoad(secondArgument), bpfIf(uffdioAPI, 1, 0),
		bpfAllow(), bpfFail(unix.EINVAL),
	}); err != nil {
		return err
	}
	fmt.Print(Status())
	return nil
})

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

// In a C program that loads Go, the program's and the libc's symbols come first: relocations are
// changed, and those of libraries that come later.
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

// Where relocations are changed, calls go on to the definition they led to before.
func TestRelocationsKeepOtherInterposers_16(t *testing.T) {
	cmd := exec.Command(artifact(t, "host"), artifact(t, "cshared.so"), artifact(t, "foreign.so"))
	cmd.Env = append(os.Environ(), EnvMonitors+"=symbols,reloc", preload(t, "counter.so"))
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"munmap           reloc", "interposer: 1\n", "later library: noticed"} {
		if err != nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q: %v\n%s", want, err, out)
		}
	}
}

// A later library may be bound to a definition that passes by here. Then nothing stays valid, and
// the next claim tests anew.
func TestALaterLibraryThatPassesByEndsTheWatch_15(t *testing.T) {
	artifact(t, "past.so")
	cmd := exec.Command(artifact(t, "host"), artifact(t, "cshared.so"), artifact(t, "usespast.so"))
	cmd.Env = append(os.Environ(), EnvMonitors+"=symbols,reloc", "IBC_TEST_DEEPBIND=1")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"munmap           reloc", "later library: noticed", "no longer watched", "needs nothing: <nil>"} {
		if err != nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q: %v\n%s", want, err, out)
		}
	}
	cmd = exec.Command(artifact(t, "host"), artifact(t, "cshared.so"), artifact(t, "foreign.so"))
	cmd.Env = append(os.Environ(), EnvMonitors+"=symbols,reloc")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("watched again")) {
		t.Errorf("a library that does not: %v\n%s", err, out)
	}
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
	cmd := exec.Command(artifact(t, "host"), artifact(t, "cshared.so"), path)
	cmd.Env = append(os.Environ(), EnvMonitors+"=symbols,reloc")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("later library: noticed")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A library may keep the address of a call in its data, and call through that.
func TestPointersInALibrarysDataLeadHere_17(t *testing.T) {
	for _, order := range []string{"later", "earlier"} {
		cmd := exec.Command(artifact(t, "host"), artifact(t, "cshared.so"), artifact(t, "pointers.so"))
		cmd.Env = append(os.Environ(), EnvMonitors+"=symbols,reloc")
		if order == "earlier" {
			cmd.Env = append(cmd.Env, preload(t, "pointers.so"))
		}
		out, err := cmd.CombinedOutput()
		for _, want := range []string{"munmap           reloc", "library: noticed", "watched again"} {
			if err != nil || !bytes.Contains(out, []byte(want)) {
				t.Errorf("%s: no %q: %v\n%s", order, want, err, out)
			}
		}
	}
}

// A program that forks before Go comes, as servers do, has as good a table as any: the preloaded
// library's was not in use.
func TestPreloadServesAChildForkedBeforeGo_21(t *testing.T) {
	cmd := exec.Command(artifact(t, "host"), artifact(t, "cshared.so"), artifact(t, "foreign.so"))
	cmd.Env = append(os.Environ(), EnvMonitors+"=symbols", preload(t, "libmemevents.so"), "IBC_TEST_FORK=1")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"munmap           preload", "later library: noticed", "watched again"} {
		if err != nil || !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q: %v\n%s", want, err, out)
		}
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

// A library's constructor runs before the library's relocations can be changed. What it takes away
// is over when dlopen returns.
func TestConstructorOfALaterLibraryThatUnmaps_17(t *testing.T) {
	host, lib, ctor := artifact(t, "host"), artifact(t, "cshared.so"), artifact(t, "ctor.so")
	cmd := exec.Command(host, lib, ctor)
	cmd.Env = append(os.Environ(), EnvMonitors+"=symbols,reloc")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "constructor: noticed") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Where the kernel maps nothing more (vm.max_map_count, RLIMIT_AS) the self-test covers nothing,
// and does no harm.
func TestSelfTestWithoutMemoryCoversNothing_17(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector maps pages for itself, and dies where it cannot")
	}
	if out := runHelper(t, nil, "nomaps"); !strings.Contains(out, "cannot allocate memory") {
		t.Errorf("the report does not say why:\n%s", out)
	}
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
