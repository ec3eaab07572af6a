// Package faulttest plants faults in copies of the project's sources, and demands that tests find
// them.
//
// A fault replaces a few lines of a production file by wrong ones. The go command's -overlay
// compiles the changed copy in the place of the file, so the product has no switch for faults:
//
//	faulttest.Suite{Package: "am", Run: "^(TestCrowd|TestLeave)$", Timeout: time.Minute}.Check(t,
//		faulttest.Fault{
//			Name:  "no poll",
//			Edits: []faulttest.Edit{{File: "am/engine.go", Old: "if l.tryLead() {", New: "if false {"}},
//			Found: "polled 0 times",
//		})
//
// One build is enough, the plain one, whose stage of hack/test.sh runs a part of them: such a test
// belongs in a file with //go:build !race && !debug && !biglock (internal/archtest).
package faulttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Suite is the tests that shall find faults.
type Suite struct {
	Package string        // the directory of the package, from the module's root
	Run     string        // which of its tests, as -run of go test
	Tags    string        // build tags, with commas between
	Args    []string      // further arguments of the test program
	Env     []string      // additions to its environment
	Timeout time.Duration // of each run, without compiling; default 2 minutes
	// Known: the package's own run has shown that the tests pass without a fault, and that there are
	// such. Else that is tried first.
	Known bool
	All   bool // go on after the first test that fails

	root string // of the module; default: the one of the working directory
}

// Fault is a mistake in the sources.
type Fault struct {
	Name  string
	Edits []Edit
	Found string // a regular expression: what the tests print that find it
}

// Edit replaces Old, which must be in the file exactly once.
type Edit struct {
	File     string // from the module's root
	Old, New string
}

// In returns what makes an edit of a file in a directory, which is named from the module's root.
func In(dir string) func(file, old, wrong string) []Edit {
	return func(file, old, wrong string) []Edit { return []Edit{{path.Join(dir, file), old, wrong}} }
}

var (
	errStale    = errors.New("the edit does not fit the file")
	errBuild    = errors.New("does not compile")
	errHang     = errors.New("the tests do not end")
	errNotFound = errors.New("no test finds the fault")
	errOther    = errors.New("found by something else")
	errControl  = errors.New("without a fault")
)

// Check runs the suite without a fault, in which it must pass, and with each of the faults, which
// it must find. It is left out in the VM, which cannot compile, and with -short. Of the faults that
// are not in the part that IBCONDUIT_FAULTS names, only the edits are tried.
func (s Suite) Check(t *testing.T, faults ...Fault) {
	t.Helper()
	if os.Getenv("IBCONDUIT_VM_INDEX") != "" || testing.Short() {
		t.Skip("planted faults are compiled and run on the host, without -short")
	}
	planted, err := shareOf(os.Getenv("IBCONDUIT_FAULTS"))
	if err == nil && s.root == "" {
		s.root, err = moduleRoot()
	}
	if err != nil {
		t.Fatal(err)
	}
	passes := s.Known
	for _, f := range faults {
		if !planted.has(s.Package, f.Name) {
			if _, err := s.overlay(t.TempDir(), f.Edits); err != nil {
				t.Errorf("%s: %v", f.Name, err)
			}
			continue
		}
		passes = passes || t.Run("none", func(t *testing.T) {
			if err := s.passes(t.Context(), t.TempDir()); err != nil {
				t.Error(err)
			}
		})
		if !passes {
			return
		}
		t.Run(f.Name, func(t *testing.T) {
			if err := s.finds(t.Context(), t.TempDir(), f); err != nil {
				t.Error(err)
			}
		})
	}
}

// share is one of n parts of the faults.
type share struct{ part, of uint32 }

// shareOf reads "PART/OF"; nothing is all.
func shareOf(text string) (share, error) {
	if text == "" {
		return share{0, 1}, nil
	}
	var s share
	part, of, _ := strings.Cut(text, "/")
	a, err1 := strconv.ParseUint(part, 10, 32)
	b, err2 := strconv.ParseUint(of, 10, 32)
	if err1 != nil || err2 != nil || a >= b {
		return s, fmt.Errorf("IBCONDUIT_FAULTS=%q: it is PART/OF with PART below OF, such as 0/3", text)
	}
	s = share{uint32(a), uint32(b)}
	return s, nil
}

// has tells by the names alone, so that each fault is in exactly one part.
func (s share) has(pkg, fault string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(pkg + "\x00" + fault))
	return h.Sum32()%s.of == s.part
}

// ranOne is what the testing package prints of a test, not a subtest, that neither failed nor
// skipped.
var ranOne = regexp.MustCompile(`(?m)^--- PASS: `)

func (s Suite) passes(ctx context.Context, dir string) error {
	out, failed, err := s.run(ctx, dir, nil)
	switch {
	case err != nil:
		return err
	case failed:
		return fmt.Errorf("%w the tests fail:\n%s", errControl, out)
	case !ranOne.Match(out):
		return fmt.Errorf("%w no test matches %q, or all skip:\n%s", errControl, s.Run, out)
	}
	return nil
}

func (s Suite) finds(ctx context.Context, dir string, f Fault) error {
	found, err := regexp.Compile(f.Found)
	if err != nil {
		return err
	}
	if f.Found == "" || len(f.Edits) == 0 {
		return errors.New("a fault needs edits, and what the tests print that find it")
	}
	out, failed, err := s.run(ctx, dir, f.Edits)
	switch {
	case err != nil:
		return err
	case !failed:
		return fmt.Errorf("%w:\n%s", errNotFound, out)
	case !found.Match(out):
		return fmt.Errorf("%w than %q:\n%s", errOther, f.Found, out)
	}
	return nil
}

// run compiles the tests with the edits, apart from running them, so that a fault that does not
// compile is not taken for one that is found.
func (s Suite) run(ctx context.Context, dir string, edits []Edit) (out []byte, failed bool, err error) {
	overlay, err := s.overlay(dir, edits)
	if err != nil {
		return nil, false, err
	}
	program := filepath.Join(dir, "faulty.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-w", "-o", program, "-overlay", overlay, "-tags", s.Tags, "./"+s.Package)
	build.Dir = s.root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, false, fmt.Errorf("%w: %v\n%s", errBuild, err, out)
	}
	limit := s.Timeout
	if limit == 0 {
		limit = 2 * time.Minute
	}
	// The program's own time limit prints stacks; the one here ends a program that does not obey.
	ctx, cancel := context.WithTimeout(ctx, limit+10*time.Second)
	defer cancel()
	args := append([]string{"-test.run=" + s.Run, "-test.v", "-test.paniconexit0", "-test.timeout=" + limit.String()}, s.Args...)
	if !s.All {
		args = append(args, "-test.failfast")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = filepath.Join(s.root, s.Package), append(os.Environ(), s.Env...)
	cmd.WaitDelay = 5 * time.Second
	out, err = cmd.CombinedOutput()
	if ctx.Err() != nil {
		return nil, false, fmt.Errorf("%w: %v\n%s", errHang, err, out)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return out, true, nil
	}
	return out, false, err
}

// overlay writes the changed copies, and the file that names them to the go command.
func (s Suite) overlay(dir string, edits []Edit) (string, error) {
	texts := map[string][]byte{}
	for _, e := range edits {
		path := filepath.Join(s.root, e.File)
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("%w: %w", errStale, err)
		}
		if texts[path] == nil {
			texts[path] = text
		}
		// In the file, and in what earlier edits have made of it.
		for _, text := range [][]byte{text, texts[path]} {
			if n := bytes.Count(text, []byte(e.Old)); n != 1 {
				return "", fmt.Errorf("%w: %s has %d times, instead of once:\n%s", errStale, e.File, n, e.Old)
			}
		}
		texts[path] = bytes.Replace(texts[path], []byte(e.Old), []byte(e.New), 1)
	}
	replace := map[string]string{}
	for path, text := range texts {
		copied := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			return "", err
		}
		replace[path] = copied
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, text, 0o600)
}

// moduleRoot is the folder above the working directory that has go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && !strings.HasSuffix(dir, string(filepath.Separator)); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.Join(errors.New("no go.mod above the working directory"), err)
}
