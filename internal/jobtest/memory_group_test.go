package jobtest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/memgroup"
)

// inGroup makes a memory group of so many bytes, and returns the command of this test binary in it,
// as root or as an ordinary user, and the directory of the group.
func inGroup(t *testing.T, limit int64, user bool) (argv []string, dir string) {
	t.Helper()
	g, err := memgroup.Make(fmt.Sprintf("ibconduit-jobtest-%d", os.Getpid()), limit)
	if err != nil && os.Getenv("IBCONDUIT_REQUIRE_MEMGROUP") == "1" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	dir, _, _ = strings.Cut(g.Place(), ":")
	as := ""
	if user {
		as = "setpriv --reuid=65534 --regid=65534 --clear-groups "
	}
	return []string{"/bin/sh", "-c", "echo $$ > " + dir + "/cgroup.procs && exec " + as + `"$0"`, forAll(t)}, dir
}

// forAll is a copy of this test binary that all users may execute.
func forAll(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ibconduit-jobtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	name := filepath.Join(dir, "rank")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err == nil {
		_, err = io.Copy(f, own)
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// launchedIn runs ranks with segments of so many bytes, 0 for the default.
func launchedIn(t *testing.T, n int, argv []string, segment int, more ...string) (string, int) {
	t.Helper()
	var out output
	env := rankEnv("exchange", conduit.Config{Fabric: conduit.FabricSHM}, append(more, fmt.Sprintf("IBCONDUIT_TEST_SEGMENT=%d", segment))...)
	code, err := launch.Run(testContext(t), launch.Config{N: n, Path: argv[0], Args: argv[1:], Env: env, Stdout: &out, Stderr: &out, Grace: endByThemselves})
	if err != nil {
		t.Fatalf("launch: %v\n%s", err, out.String())
	}
	return out.String(), code
}

func eachUser(t *testing.T, f func(t *testing.T, user bool)) {
	t.Run("root", func(t *testing.T) { f(t, false) })
	t.Run("user", func(t *testing.T) { f(t, true) })
}

func TestRanksTooLargeForTheirGroupAreRefused(t *testing.T) {
	eachUser(t, func(t *testing.T, user bool) {
		argv, _ := inGroup(t, 300<<20, user)
		out, code := launchedIn(t, 2, argv, 200<<20)
		for _, want := range []string{"ranks 0,1 together: segment: ", "cgroup memory limit of ", "segments "} {
			if n := strings.Count(out, want); n != 2 || code == 0 {
				t.Errorf("code %d, and %d ranks say %q, want 2:\n%s", code, n, want, out)
			}
		}
		if out, code := launchedIn(t, 2, argv, 100<<20); code != 0 || !strings.HasPrefix(out, "size 2 sums [6 6]") {
			t.Errorf("ranks that fit: code %d\n%s", code, out)
		}
	})
}

func TestDefaultSizesAboveTheGroupAreWarnedOf(t *testing.T) {
	eachUser(t, func(t *testing.T, user bool) {
		argv, _ := inGroup(t, 110<<20, user)
		out, code := launchedIn(t, 2, argv, 0, "IBCONDUIT_LOG=warn")
		if code != 0 || !strings.Contains(out, "size 2 sums [6 6]") || strings.Count(out, "ranks 0,1 together") != 1 {
			t.Errorf("code %d; want one warning:\n%s", code, out)
		}
	})
}

// A program that has read files often leaves their pages active.
func TestPageCacheOfAGroupIsRoomForASegment(t *testing.T) {
	var fs unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		t.Skipf("%s is in memory, and its files are no page cache (%v)", os.TempDir(), err)
	}
	eachUser(t, func(t *testing.T, user bool) {
		argv, dir := inGroup(t, 200<<20, user)
		name := filepath.Join(t.TempDir(), "file")
		script := fmt.Sprintf("echo $$ > %s/cgroup.procs && dd if=/dev/zero of=%s bs=1M count=120 conv=fsync && for i in 1 2 3 4; do cat %[2]s >/dev/null; done", dir, name)
		if out, err := exec.Command("/bin/sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, code := launchedIn(t, 1, argv, 120<<20); code != 0 || !strings.HasPrefix(out, "size 1 sums [1]") {
			t.Errorf("code %d\n%s", code, out)
		}
	})
}
