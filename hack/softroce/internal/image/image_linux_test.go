package image

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestKeyOfTheImageChangesWithEveryInput(t *testing.T) {
	k := &kernelPackage{Package: "linux-image_1"}
	base := imageKey([]byte("agent"), k)
	if again := imageKey([]byte("agent"), k); again != base {
		t.Error("the key is not a function of the inputs")
	}
	keys := map[string]bool{base: true, imageKey([]byte("other"), k): true, imageKey([]byte("agent"), &kernelPackage{Package: "linux-image_2"}): true}
	rdmaModules = append(rdmaModules, "siw")
	defer func() { rdmaModules = rdmaModules[:len(rdmaModules)-1] }()
	if keys[imageKey([]byte("agent"), k)] = true; len(keys) != 4 {
		t.Error("inputs that differ have one key")
	}
}

func TestPrepareKeepsAnImageWhoseInputsAreTheSame(t *testing.T) {
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	deb := filepath.Join(dir, "deb")
	if err := errors.Join(os.WriteFile(agent, []byte("a"), 0o755), os.Mkdir(deb, 0o755), os.WriteFile(filepath.Join(deb, "k.deb"), nil, 0o644),
		os.WriteFile(filepath.Join(deb, "kernel.json"), []byte(`{"Package":"k","Debs":["k.deb"]}`), 0o644)); err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: dir, Agent: agent}
	key := imageKey([]byte("a"), &kernelPackage{Package: "k"})
	made := filepath.Join(dir, "image", key)
	if err := errors.Join(os.MkdirAll(made, 0o755), os.WriteFile(filepath.Join(made, "image.json"), []byte(`{"Release":"1"}`), 0o644)); err != nil {
		t.Fatal(err)
	}
	if im, err := Prepare(t.Context(), o); err != nil || im.Release != "1" || im.Kernel != filepath.Join(made, "vmlinux") {
		t.Fatal(im, err)
	}
	// Another agent is another image; that it cannot be unpacked from an empty package shows that
	// it was tried.
	if err := os.WriteFile(agent, []byte("b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(t.Context(), o); err == nil {
		t.Fatal("an image of another agent was taken")
	}
}

func TestPrepareWithoutAnAgentSaysWhatToRun(t *testing.T) {
	if _, err := Prepare(t.Context(), Options{Dir: t.TempDir()}); !errors.Is(err, os.ErrNotExist) || !bytes.Contains([]byte(err.Error()), []byte("vm prepare")) {
		t.Fatal(err)
	}
}

func TestSoftDependenciesThatComeFirstAreFound(t *testing.T) {
	if got := softPre("pre: a b post: c pre: d"); !slices.Equal(got, []string{"a", "b", "d"}) {
		t.Fatal(got)
	}
}

func TestAMissingModuleIsAnErrorUnlessOptional(t *testing.T) {
	m := &moduleSet{paths: map[string]string{}, builtin: map[string]bool{"virtio_pci": true}}
	if l, err := m.closure(t.Context(), []string{"virtio-pci", "crc32_generic"}, map[string]bool{}); err != nil || len(l) != 0 {
		t.Error(l, err)
	}
	if _, err := m.closure(t.Context(), []string{"rdma_rxe"}, map[string]bool{}); err == nil {
		t.Error("a kernel without rdma_rxe was accepted")
	}
}

func TestCompressedModulesAreUncompressed(t *testing.T) {
	for _, c := range compressions {
		tool, err := exec.LookPath(c.argv[0])
		if err != nil {
			t.Errorf("%s: %v; hack/setup.sh rdma installs it", c.suffix, err)
			continue
		}
		cmd := exec.Command(tool, "-c")
		cmd.Stdin = bytes.NewReader([]byte("module"))
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "m.ko"+c.suffix)
		if err := os.WriteFile(file, packed, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := readModule(t.Context(), file); err != nil || string(got) != "module" {
			t.Errorf("%s: %q %v", c.suffix, got, err)
		}
	}
}

func TestArchiveIsAlignedAndEndsWithTheTrailer(t *testing.T) {
	var b bytes.Buffer
	w := &cpioWriter{w: &b}
	w.dir("d")
	w.file("d/f", 0o644, []byte("12345"))
	w.end()
	if w.err != nil || b.Len()%4 != 0 || !bytes.Contains(b.Bytes(), []byte("TRAILER!!!")) {
		t.Fatal(w.err, b.Len())
	}
	for off := 0; off < b.Len(); off++ {
		if bytes.HasPrefix(b.Bytes()[off:], []byte("070701")) && off%4 != 0 {
			t.Error("header at", off)
		}
	}
}

func TestLockIsExclusiveAndEndsWithItsRelease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	release, err := Lock(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	waited := false
	if _, err := LockOne(ctx, []string{file}, func() { waited = true }); !errors.Is(err, context.DeadlineExceeded) || !waited {
		t.Fatal(err, waited)
	}
	release()
	again, err := Lock(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestAptGetUnderSudoHasTheProxies(t *testing.T) {
	for _, v := range []string{"https_proxy", "ftp_proxy", "no_proxy"} {
		t.Setenv(v, "")
	}
	t.Setenv("http_proxy", "http://proxy:3128")
	if got, want := strings.Join(asRoot(1000, "apt-get", "update"), " "), "sudo -n http_proxy=http://proxy:3128 apt-get update"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := strings.Join(asRoot(0, "apt-get", "update"), " "); got != "apt-get update" {
		t.Errorf("root is to run %q", got)
	}
}
