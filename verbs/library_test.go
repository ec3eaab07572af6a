//go:build linux && cgo

package verbs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

// childRole makes this binary a process that loads libibverbs and says what it found: a process
// looks only once.
const childRole = "IBCONDUIT_TEST_LIBRARY"

func init() {
	if role, ok := os.LookupEnv(childRole); ok {
		libraryChild(role)
		os.Exit(0)
	}
}

func libraryChild(role string) {
	file, err := Library()
	fmt.Printf("file %s\nerror %v\nsentinel %t\nfork %s\n", filepath.Base(file), err, errors.Is(err, ErrNoLibrary), GetForkStatus())
	if err != nil {
		return
	}
	switch role {
	case "list":
		infos, err := Devices()
		fmt.Printf("devices %d %v\n", len(infos), err)
	case "device":
		device := os.Getenv(rdmatest.EnvDevice)
		fmt.Printf("%sregistered: %v\n", describeGIDs(device), register(device))
	}
}

// register registers memory on a device.
func register(device string) error {
	x, err := Open(device)
	if err != nil {
		return err
	}
	defer x.Close()
	pd, err := x.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	mr, err := pd.Register(unsafe.Pointer(&mem[0]), 4096, AccessAll)
	if err != nil {
		return err
	}
	return mr.Close()
}

// describeGIDs prints a device's ports and their GID tables.
func describeGIDs(device string) string {
	x, err := Open(device)
	if err != nil {
		return err.Error()
	}
	defer x.Close()
	var b strings.Builder
	for p := 1; p <= x.Attr().Ports; p++ {
		port, err := x.Port(p)
		gids, gidErr := x.GIDs(p)
		fmt.Fprintf(&b, "port %d %v %v: %d entries %v %v\n", p, port.LinkLayer, err, len(gids), gids, gidErr)
	}
	return b.String()
}

// child runs this binary with a role, with env added, and returns what it prints.
func child(t *testing.T, role string, env ...string) string {
	t.Helper()
	out, err := childCommand(t, append(env, childRole+"="+role)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", env, err, out)
	}
	return string(out)
}

// childCommand is this binary, with env added. It inherits no library that the test was given.
func childCommand(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(must(os.Executable())(t))
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LD_") && !strings.HasPrefix(kv, EnvLibrary) {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// shared compiles a C file of testdata into a shared library of that name.
func shared(t *testing.T, name, source string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	gcc(t, append([]string{"-std=gnu11", "-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o", out, "testdata/" + source}, append(flags, "-ldl")...)...)
	return out
}

func wantLines(t *testing.T, out string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains(out, l) {
			t.Errorf("no %q in:\n%s", l, out)
		}
	}
}

func TestAMissingLibraryIsAnErrorWithARemedy(t *testing.T) {
	// A name for the dynamic linker, as the default is; the remedy then is to correct the variable.
	out := child(t, "", EnvLibrary+"=libibverbs.so.none")
	wantLines(t, out, "file .\n", "sentinel true", "load libibverbs.so.none", "cannot open shared object file", EnvLibrary+" names it", "fork unneeded")
	for _, word := range []string{"apt-get install libibverbs1", "dnf install libibverbs", EnvLibrary, "shared memory"} {
		if err := notLoaded(soname, "cannot open", false); !strings.Contains(err.Error(), word) || !errors.Is(err, ErrNoLibrary) {
			t.Errorf("no %q in %v", word, err)
		}
	}
}

func TestAnOldLibraryIsRefusedByName(t *testing.T) {
	notInVM(t)
	old := shared(t, "old.so", "library.c", "-Wl,--version-script=testdata/old.map")
	out := child(t, "", EnvLibrary+"="+old)
	wantLines(t, out, "sentinel true", "it lacks ibv_destroy_ah@IBVERBS_1.1, ibv_resize_cq@IBVERBS_1.1 (", "install")

	out = child(t, "", EnvLibrary+"="+shared(t, "other.so", "library.c", "-Wl,--version-script=testdata/none.map"))
	wantLines(t, out, "sentinel true", "it has none of the calls of libibverbs")
}

func TestAPreloadedLibraryWins(t *testing.T) {
	notInVM(t)
	stub := shared(t, "stub.so", "library.c")
	newer := shared(t, "newer.so", "library.c", "-DNEWER", "-DFORK_STATUS=IBV_FORK_ENABLED")
	interposer := shared(t, "interposer.so", "interposer.c")

	// Alone, or before the file of the variable.
	wantLines(t, child(t, "", "LD_PRELOAD="+stub), "file stub.so\n", "error <nil>")
	wantLines(t, child(t, "", "LD_PRELOAD="+stub, EnvLibrary+"="+newer), "file stub.so\n", "fork disabled")
	wantLines(t, child(t, "", EnvLibrary+"="+newer), "file newer.so\n", "fork enabled")
	// A call of its own comes before the library's, and reaches it.
	out := child(t, "list", "LD_PRELOAD="+interposer, EnvLibrary+"="+newer)
	wantLines(t, out, "error <nil>", "interposed\n", "devices 0", "fork unneeded")
	// A newer call of another library is not for what this one made.
	out = child(t, "", "LD_PRELOAD="+stub+":"+newer)
	wantLines(t, out, "file stub.so\n", "fork disabled")
	out = child(t, "", "LD_PRELOAD="+newer+":"+stub)
	wantLines(t, out, "file newer.so\n", "fork enabled")
}

// Without the newer calls everything works: GIDs are asked for one by one.
func TestAnOldLibraryDoesTheSame(t *testing.T) {
	device := rdmatest.Device(t)
	file := must(Library())(t)
	old := shared(t, "old.so", "library.c", fmt.Sprintf("-DREAL=%q", file))
	env := []string{EnvLibrary + "=" + old, rdmatest.EnvDevice + "=" + device}
	want := describeGIDs(device)
	wantLines(t, child(t, "device", env...), "file old.so\n", "error <nil>", want, "registered: <nil>\n")
	if !strings.Contains(want, "RoCEv2") {
		t.Errorf("no RoCEv2 among %s", want)
	}
	cmd := childCommand(t, env...)
	cmd.Args = append(cmd.Args, "-test.v", "-test.run=^(TestLimitsPortGIDsAndPKeysAreThoseOfTheDevice|TestWriteAndReadMoveBytes|TestUDSendGoesToTheQPOfTheAddressHandle)$")
	if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "--- PASS") != 3 {
		t.Errorf("%v:\n%s", err, out)
	}
}
