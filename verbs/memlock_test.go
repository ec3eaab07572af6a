//go:build linux

package verbs

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemlockExplanationPerLauncher(t *testing.T) {
	m := Memlock{Limit: 64 << 10, Pinned: 4096}
	detail, remedy := m.Explain(1 << 30)
	if want := "1 GiB asked, 4 KiB pinned already, and RLIMIT_MEMLOCK is 64 KiB without CAP_IPC_LOCK"; detail != want {
		t.Errorf("got  %s\nwant %s", detail, want)
	}
	for _, want := range []string{"ulimit -l unlimited", "limits.conf", "slurm", "docker", "Kubernetes"} {
		if !strings.Contains(remedy, want) {
			t.Errorf("remedy lacks %q: %s", want, remedy)
		}
	}
	for _, m := range []Memlock{{Limit: 64 << 10, CapIPCLck: true}, {Limit: Unlimited}, {Limit: 2 << 30}} {
		if !m.Allows(1 << 30) {
			t.Errorf("%+v must allow 1 GiB", m)
		}
		if _, remedy := m.Explain(1 << 30); strings.Contains(remedy, "ulimit") {
			t.Errorf("%+v: the limit is not the cause: %s", m, remedy)
		}
	}
}

func TestMemlockIsReadFromTheKernel(t *testing.T) {
	var r unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r))
	if m := ReadMemlock(); m.Limit != r.Cur {
		t.Errorf("limit %d, want %d", m.Limit, r.Cur)
	}
}

func TestSizesArePrintedInBinaryUnits(t *testing.T) {
	for v, want := range map[uint64]string{0: "0 bytes", 1023: "1023 bytes", 1536: "1536 bytes", 8 << 20: "8 MiB", 1 << 40: "1 TiB"} {
		if got := size(v); got != want {
			t.Errorf("%d: %q, want %q", v, got, want)
		}
	}
}

func TestSizesThatDifferAreShownToDiffer(t *testing.T) {
	m := Memlock{Limit: 5 << 20, Pinned: 4096}
	if detail, _ := m.Explain(5<<20 + 1); detail != "5242881 bytes asked, 4 KiB pinned already, and RLIMIT_MEMLOCK is 5 MiB without CAP_IPC_LOCK" {
		t.Error(detail)
	}
}
