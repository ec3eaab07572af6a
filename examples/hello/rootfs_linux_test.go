package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// rootFS is a root file system with the programs and the shared libraries that they are linked
// with, and nothing else. Where the process is root it must be able to enter it.
type rootFS struct {
	dir   string
	enter []string // the command that runs another one in it
}

// newRootFS has of the machine only the file systems of mounts. env is added to that of the build.
func newRootFS(t *testing.T, mounts []string, env ...string) *rootFS {
	t.Helper()
	r := &rootFS{dir: t.TempDir()}
	for _, d := range mounts {
		r.must(t, os.Mkdir(filepath.Join(r.dir, d), 0o755))
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", r.dir+"/bin/", ".", "../../cmd/ibrun")
	build.Env = append(os.Environ(), env...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, out)
	}
	for _, program := range []string{"hello", "ibrun"} {
		for _, library := range r.libraries(filepath.Join(r.dir, "bin", program)) {
			if strings.Contains(library, "libibverbs") {
				t.Errorf("%s is linked with %s", program, library)
				continue
			}
			to := filepath.Join(r.dir, library)
			b, err := os.ReadFile(library)
			r.must(t, err)
			r.must(t, os.MkdirAll(filepath.Dir(to), 0o755))
			r.must(t, os.WriteFile(to, b, 0o755))
		}
	}
	namespace := []string{"unshare", "--mount", "--propagation", "private"}
	if os.Getuid() != 0 {
		namespace = append(namespace, "--map-root-user")
	}
	if out, err := exec.Command("unshare", append(namespace[1:], "true")...).CombinedOutput(); err != nil && !mayMount(t) {
		t.Skipf("this process may not make a root file system of its own: %v: %s", err, bytes.TrimSpace(out))
	}
	r.enter = append(namespace, "sh", "-c", `for d in `+strings.Join(mounts, " ")+`; do mount --rbind /$d "$0/$d" || exit; done; root=$0; exec chroot "$root" "$@"`, r.dir)
	return r
}

func (r *rootFS) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// libraries are the files that the dynamic linker loads for a program, itself among them; none for
// a static program.
func (r *rootFS) libraries(program string) []string {
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil
	}
	return regexp.MustCompile(`/\S+`).FindAllString(string(out), -1)
}

// mayMount: the process is root of this machine, or of a container that lets it mount.
func mayMount(t *testing.T) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	const sysAdmin = 21 // capabilities(7), linux/capability.h
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && caps&(1<<sysAdmin) != 0
		}
	}
	return false
}

// run runs a command in the root file system, with nothing but the words of env in its environment.
func (r *rootFS) run(env string, command ...string) (string, error) {
	cmd := exec.Command(r.enter[0], append(r.enter[1:], command...)...)
	cmd.Env = append(strings.Fields(env), "PATH="+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestHelloNeedsNoLibibverbs(t *testing.T) {
	r := newRootFS(t, []string{"proc", "dev"})
	out, err := r.run("", "/bin/hello")
	if want := "rank 0 of 1: my left neighbour is 0; 1 were here\n"; err != nil || out != want {
		t.Errorf("alone: %v, output:\n%s", err, out)
	}
	r.runTwo(t)
	// It is not even looked for: the dynamic linker says what it searches (ld.so(8)).
	if out, err = r.run("LD_DEBUG=libs", "/bin/hello"); err != nil || strings.Contains(out, "libibverbs") {
		t.Errorf("without verbs: %v, output:\n%s", err, out)
	}
	out, err = r.run("IBCONDUIT_FABRIC=ibv LD_DEBUG=libs", "/bin/hello")
	if err == nil {
		t.Errorf("verbs without libibverbs:\n%s", out)
	}
	want := []string{"find library=libibverbs.so.1 ", "libibverbs.so.1: cannot open shared object file", "apt-get install libibverbs1", "IBCONDUIT_LIBIBVERBS"}
	if !r.linked() {
		want = []string{"built without", "CGO_ENABLED=1"}
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in:\n%s", w, out)
		}
	}
}

// linked says whether hello is a dynamic program: one with cgo.
func (r *rootFS) linked() bool { return r.libraries(filepath.Join(r.dir, "bin/hello")) != nil }

// runTwo starts a job of two ranks.
func (r *rootFS) runTwo(t *testing.T) {
	t.Helper()
	out, err := r.run("", "/bin/ibrun", "-n", "2", "/bin/hello")
	for rank := range 2 {
		if want := fmt.Sprintf("rank %d of 2: my left neighbour is %d; 2 were here\n", rank, 1-rank); err != nil || !strings.Contains(out, want) {
			t.Errorf("two ranks: %v, no %q in:\n%s", err, want, out)
		}
	}
}

// A static program needs of its root nothing but /proc, as in an image that is made from scratch:
// no /dev, no /tmp, no library.
func TestStaticProgramsRunInAnEmptyRoot(t *testing.T) {
	r := newRootFS(t, []string{"proc"}, "CGO_ENABLED=0")
	if r.linked() {
		t.Fatal("hello is linked with libraries")
	}
	r.runTwo(t)
	if left, err := filepath.Glob(r.dir + "/*"); err != nil || len(left) != 2 {
		t.Errorf("the root holds %q, want bin and proc (%v)", left, err)
	}
}
