package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// has compares what a file holds, and looks for others in its directory.
func has(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %d bytes, %v; want %q", path, len(got), err, want)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".ibconduit-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

// full has the kernel refuse what goes beyond n bytes of a file.
func full(t *testing.T, n uint64) {
	t.Helper()
	var old unix.Rlimit
	signal.Ignore(unix.SIGXFSZ) // which would end the test
	err := errors.Join(unix.Getrlimit(unix.RLIMIT_FSIZE, &old), unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: old.Max}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Setrlimit(unix.RLIMIT_FSIZE, &old)
		signal.Reset(unix.SIGXFSZ)
	})
}

func TestAFileThatDoesNotFitIsAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	write(t, path, "earlier")
	full(t, 4096)
	err := WriteFile(path, make([]byte, 8192), 0o666)
	if !errors.Is(err, unix.EFBIG) || !strings.Contains(err.Error(), "write "+path+": ") {
		t.Errorf("%v does not say which file could not be written", err)
	}
	has(t, path, "earlier")

	none := filepath.Join(filepath.Dir(path), "b.json")
	f, err := Create(none, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	_, first := f.Write(make([]byte, 8192))
	_, second := f.Write([]byte("x")) // for which there would be room
	if err := f.Close(); first == nil || !errors.Is(second, first) || !errors.Is(err, first) {
		t.Errorf("%v, %v, then %v", first, second, err)
	}
	if _, err := os.Lstat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half of a file: %v", err)
	}
}

func TestUntilItIsClosedAFileIsAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "earlier")
	f, err := Create(path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	has(t, path, "earlier") // and nothing beside it, whether or not there is a Close
	if _, err := f.Write([]byte("la")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "earlier" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := f.Write([]byte("ter")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	has(t, path, "later")
	if f, err = Create(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("never")); err != nil {
		t.Fatal(err)
	}
	f.Discard()
	has(t, path, "later")
}

func TestAFileKeepsItsModeAndLinks(t *testing.T) {
	dir := t.TempDir()
	path, link, dangling := filepath.Join(dir, "a"), filepath.Join(dir, "link"), filepath.Join(dir, "dangling")
	write(t, path, "1")
	err := errors.Join(os.Chmod(path, 0o640), os.Mkdir(filepath.Join(dir, "x"), 0o755), os.Symlink("x/../a", link), os.Symlink("new", dangling))
	if err != nil {
		t.Fatal(err)
	}
	write(t, link, "2")
	has(t, path, "2")
	if s, err := os.Stat(path); err != nil || s.Mode() != 0o640 {
		t.Errorf("%v, %v", s, err)
	}
	write(t, dangling, "3")
	has(t, filepath.Join(dir, "new"), "3")
	for _, l := range []string{link, dangling} {
		if _, err := os.Readlink(l); err != nil {
			t.Error(err)
		}
	}
}

func TestANewFileHasTheUsersMode(t *testing.T) {
	defer unix.Umask(unix.Umask(0o027))
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "")
	if s, err := os.Stat(path); err != nil || s.Mode() != 0o640 {
		t.Errorf("%v, %v", s, err)
	}
}

func TestWhatIsNoRegularFileIsWrittenItself(t *testing.T) {
	dir, links := t.TempDir(), 0
	link := func(to string) string {
		links++
		path := filepath.Join(dir, fmt.Sprint("link", links))
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := WriteFile(link("/dev/full"), []byte("x"), 0o666); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full device: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	write(t, link(fmt.Sprintf("/dev/fd/%d", w.Fd())), "through a pipe")
	_ = w.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "through a pipe" {
		t.Errorf("%q, %v", got, err)
	}
	// As the shell's > FILE, where the program names /dev/stdout.
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	fmt.Fprint(out, "before, ")
	write(t, link(fmt.Sprintf("/proc/self/fd/%d", out.Fd())), "written")
	has(t, out.Name(), "before, written")
}

func TestWhatCannotBeWrittenIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Symlink("b", filepath.Join(dir, "a")), os.Symlink("a", filepath.Join(dir, "b"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir + "/none/x": "create " + dir + "/none/x: no such file or directory",
		dir:             "is a directory",
		dir + "/a":      "create " + dir + "/a: too many levels of symbolic links",
		"/sys/x.json":   "/sys/x.json: its directory takes no new file",
	} {
		if f, err := Create(path, 0o666); f != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v; want %q", f, err, want)
		}
	}
}
