//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/memevents"
)

// library builds libmemevents.so once per test; other is a library that is something else.
func library(t *testing.T) (lib, other string) {
	t.Helper()
	dir := t.TempDir()
	lib, other = filepath.Join(dir, libraryName), filepath.Join(dir, "other.so")
	if out, err := exec.Command("../../memevents/build.sh", "-o", lib).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	source := filepath.Join(dir, "other.c")
	if err := os.WriteFile(source, []byte("int ibc_other(void) { return 7; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", other, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return lib, other
}

func init() { counts = countingRank }

// countingRank unmaps often and says how often that was noticed, and by which monitor.
func countingRank() int {
	const calls = 1000
	debug.SetGCPercent(-1) // the runtime's own calls count too
	runtime.LockOSThread()
	by := memevents.Status().Classes[memevents.Munmap].By
	least := uint64(1 << 40)
	for range 20 { // another thread's stack may come and go meanwhile
		before := memevents.ReadStats()
		for range calls {
			p, err := memevents.Map(1)
			if err == nil {
				err = memevents.Unmap(p, 1)
			}
			if err != nil {
				fmt.Println(err)
				return 1
			}
		}
		least = min(least, memevents.ReadStats().Unmaps-before.Unmaps)
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("%d of %d by %s with LD_PRELOAD=%s\n", least, calls, by, os.Getenv("LD_PRELOAD"))
	return 0
}

func TestPreloadedProgramCountsEachEventOnce(t *testing.T) {
	lib, _ := library(t)
	for _, c := range []struct {
		args []string
		by   string
	}{{[]string{"--preload"}, "preload"}, {nil, "symbols"}} {
		code, out, errs := finish(t, []string{envLibrary + "=" + lib, "LD_PRELOAD="}, append(c.args, "-n", "3", "--no-prefix", "--env", asRank+"=counts", self)...)
		if code != 0 || errs != "" || strings.Count(out, "1000 of 1000 by "+c.by+" ") != 3 {
			t.Errorf("%q: code %d\n%s%s", c.args, code, out, errs)
		}
	}
}

func TestPreloadKeepsWhatWasPreloaded(t *testing.T) {
	lib, other := library(t)
	show := []string{"sh", "-c", `echo "$LD_PRELOAD"`}
	for _, c := range []struct {
		env, args []string
		want      string
	}{
		{nil, nil, lib},
		{[]string{"LD_PRELOAD=" + other}, nil, lib + ":" + other},
		{[]string{"LD_PRELOAD=" + other + " " + lib}, nil, lib + ":" + other},
		{nil, []string{"--env", "LD_PRELOAD=" + other}, lib + ":" + other},
		{[]string{"LD_PRELOAD=" + lib}, []string{"--env", "LD_PRELOAD=" + other}, lib + ":" + other},
	} {
		args := append(append([]string{"--preload"}, c.args...), show...)
		code, out, errs := finish(t, append([]string{"LD_PRELOAD=", envLibrary + "=" + lib}, c.env...), args...)
		if code != 0 || errs != "" || out != c.want+"\n" {
			t.Errorf("%q %q: code %d, %q, want %q; %s", c.env, c.args, code, out, c.want, errs)
		}
	}
	if _, out, _ := finish(t, []string{"LD_PRELOAD=" + other}, show...); out != other+"\n" {
		t.Errorf("without --preload: %q", out)
	}
}

func TestPreloadOfAWrongFileSaysWhatToDo(t *testing.T) {
	lib, other := library(t)
	blank := filepath.Join(t.TempDir(), "a b")
	if err := os.Mkdir(blank, 0o700); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), libraryName)
	if err := errors.Join(os.WriteFile(text, []byte("no library"), 0o600), os.Symlink(lib, filepath.Join(blank, libraryName))); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		"/no/such/" + libraryName:         "no such file",
		other:                             "it is no libmemevents.so",
		text:                              "it is no shared library",
		filepath.Join(blank, libraryName): "a blank or a colon",
	} {
		code, out, errs := finish(t, []string{envLibrary + "=" + path}, "--preload", "echo", "ran")
		if code != 80 || out != "" || !strings.Contains(errs, says) || !strings.Contains(errs, envLibrary) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: code %d, %q; %q should hold %q", path, code, out, errs, says)
		}
	}
}

func TestLibraryIsFoundBesideProgramAndInPrefix(t *testing.T) {
	lib, _ := library(t)
	for _, place := range []string{"bin", "lib", "lib/ibconduit", "."} {
		prefix := t.TempDir()
		bin, at := filepath.Join(prefix, "bin"), filepath.Join(prefix, place, libraryName)
		if err := errors.Join(os.MkdirAll(bin, 0o700), os.MkdirAll(filepath.Dir(at), 0o700)); err != nil {
			t.Fatal(err)
		}
		if got, err := findBeside(bin); err == nil || !strings.Contains(err.Error(), "memevents/build.sh") {
			t.Errorf("nothing is there, and %s was found: %v", got, err)
		}
		if err := os.Symlink(lib, at); err != nil {
			t.Fatal(err)
		}
		if got, err := findBeside(bin); err != nil || got != at {
			t.Errorf("%s: %s, %v", at, got, err)
		}
	}
	spoilt := t.TempDir()
	if err := os.WriteFile(filepath.Join(spoilt, libraryName), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := findBeside(spoilt); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a library that cannot be loaded was passed by: %v", err)
	}
}
