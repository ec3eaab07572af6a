package segment

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/handle/handletest"
)

func TestMain(m *testing.M) {
	if n := os.Getenv("IBCONDUIT_TEST_FSIZE"); n != "" {
		os.Exit(underFileLimit())
	}
	handletest.VerifyTestMain(m)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustMap(t *testing.T, c Config) *Mapping {
	t.Helper()
	m, err := Map(c)
	must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestASegmentIsZeroAtFirst(t *testing.T) {
	for _, shared := range []bool{false, true} {
		m := mustMap(t, Config{Size: 5000, Layout: mustPlace(t, Region{Name: "a", Size: 300}), Shared: shared})
		if a, _ := m.Region("a"); len(a) != 300 || len(m.User()) != 5000 || m.Len() != int64(len(m.Bytes())) || m.Len() < 64<<10+5000 {
			t.Fatalf("%d and %d bytes of %d", len(a), len(m.User()), m.Len())
		}
		for i, b := range m.Bytes() {
			if b != 0 {
				t.Fatalf("byte %d is %d", i, b)
			}
		}
		if (m.FD() >= 0) != shared {
			t.Errorf("FD %d of a mapping with Shared %v", m.FD(), shared)
		}
	}
}

func TestAlignmentIsHonoured(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for align := int64(1); align <= 64<<20; align *= 4 {
			m := mustMap(t, Config{Size: 10000, Align: align, Shared: shared})
			if a := uintptr(unsafe.Pointer(&m.Bytes()[0])); a%uintptr(align) != 0 {
				t.Errorf("mapped at %#x, want a multiple of %#x", a, align)
			}
			m.Bytes()[m.Len()-1] = 1
		}
	}
}

func TestPeerSeesTheSameBytes(t *testing.T) {
	m := mustMap(t, Config{Size: 100_000, Shared: true})
	p, err := MapFD(m.FD(), 0)
	must(t, err)
	defer p.Close()
	m.Bytes()[99_999] = 7
	p.Bytes()[0] = 9
	if p.Bytes()[99_999] != 7 || m.Bytes()[0] != 9 || p.Len() != m.Len() {
		t.Error("the peer's mapping is other memory")
	}
}

func TestSizeOfASegmentIsSealed(t *testing.T) {
	m := mustMap(t, Config{Size: 8192, Shared: true})
	for _, n := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(m.FD(), n); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncating to %d gave %v, want EPERM", n, err)
		}
	}
}

func TestFilesThatCouldShrinkAreRefused(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(1<<20))
	loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	defer unix.Close(loose)
	must(t, unix.Ftruncate(loose, 1<<20))
	null, err := os.Open("/dev/null")
	must(t, err)
	defer null.Close()
	for what, fd := range map[string]int{"file": int(f.Fd()), "unsealed memfd": loose, "device": int(null.Fd()), "nothing": -1} {
		if m, err := MapFD(fd, 4096); err == nil {
			m.Close()
			t.Errorf("%s was mapped", what)
		}
	}
}

func TestLengthsThatThePeerDoesNotHaveAreRefused(t *testing.T) {
	m := mustMap(t, Config{Size: 8192, Shared: true})
	for _, n := range []int64{-1, 8193, 1 << 40, 1<<63 - 1} {
		if p, err := MapFD(m.FD(), n); err == nil {
			p.Close()
			t.Errorf("%d bytes of 8192 were mapped", n)
		}
	}
}

func TestRequiredHugePagesAreUsedOrRefused(t *testing.T) {
	for _, shared := range []bool{false, true} {
		m, err := Map(Config{Size: 3 << 20, HugePages: Require, Shared: shared})
		var le *LimitError
		if errors.As(err, &le) {
			t.Logf("no huge pages here: %v", err)
			continue
		}
		must(t, err)
		m.Bytes()[m.Len()-1] = 1
		if !m.HugePages() || m.Len()%int64(m.PageSize()) != 0 {
			t.Errorf("huge %v, %d bytes of %d-byte pages", m.HugePages(), m.Len(), m.PageSize())
		}
		if shared {
			p, err := MapFD(m.FD(), m.Len())
			must(t, err)
			if p.Bytes()[p.Len()-1] != 1 || !p.HugePages() {
				t.Error("the peer's huge mapping is other memory")
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNodeThatDoesNotExistIsNoted(t *testing.T) {
	m := mustMap(t, Config{Size: 4096, NUMANode: OnNode(5000)})
	if len(m.Notes()) != 1 || !strings.Contains(m.Notes()[0], "node 5000") {
		t.Errorf("notes %q", m.Notes())
	}
	m = mustMap(t, Config{Size: 4096, NUMANode: OnNode(0)})
	for _, n := range m.Notes() {
		if !strings.Contains(n, unix.EPERM.Error()) && !strings.Contains(n, unix.ENOSYS.Error()) { // a seccomp filter
			t.Error(n)
		}
	}
	if m := mustMap(t, Config{Size: 4096, NUMANode: -1}); len(m.Notes()) != 0 {
		t.Errorf("notes %q for no node", m.Notes())
	}
}

func TestCloseIsIdempotent(t *testing.T) {
	m := mustMap(t, Config{Size: 1, Shared: true})
	must(t, m.Close())
	must(t, m.Close())
}

// The kernel answers a memfd above RLIMIT_FSIZE with SIGXFSZ, which would end
// the process: the limit must be found by reading it.
func TestFileLimitIsAnErrorNotASignal(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "IBCONDUIT_TEST_FSIZE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func underFileLimit() int {
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		fmt.Println(err)
		return 1
	}
	var le *LimitError
	if _, err := Map(Config{Size: 2 << 20, Shared: true}); !errors.As(err, &le) || le.Which != "RLIMIT_FSIZE" {
		fmt.Println("got", err)
		return 1
	}
	return 0
}
