//go:build !race && !debug && !biglock

package faulttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	production = `package sum

func Add(a, b int) int { return a + b }

func Sub(a, b int) int { return a - b }
`
	tests = `package sum

import (
	"os"
	"testing"
)

func TestAdd(t *testing.T) {
	if got := Add(2, 3); got != 5 {
		t.Fatalf("2 + 3 is %d", got)
	}
}

func TestSub(t *testing.T) {
	if got := Sub(2, 3); got != -1 {
		t.Fatalf("2 - 3 is %d", got)
	}
}

func TestFails(t *testing.T) { t.Fatal(os.Getenv("SAY")) }

func TestSkips(t *testing.T) { t.Skip() }
`
)

// suite is the tests of a module of its own.
func suite(t *testing.T, run string) Suite {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/m\n\ngo 1.26\n", "sum/sum.go": production, "sum/sum_test.go": tests,
		"sum/tagged_test.go": "//go:build extra\n\npackage sum\n\nimport \"testing\"\n\nfunc TestTagged(t *testing.T) { t.Log(\"tagged\") }\n",
	} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return Suite{Package: "sum", Run: run, Timeout: time.Minute, root: root}
}

func TestFaultsAreFoundOrTheReasonIsNamed(t *testing.T) {
	edit := func(old, wrong string) []Edit { return []Edit{{"sum/sum.go", old, wrong}} }
	const arithmetic = "TestAdd|TestSub"
	for _, c := range []struct {
		name, run, found string
		edits            []Edit
		want             error
		says             string
	}{
		{name: "found", found: "2 . 3 is 6", edits: edit("a + b", "a * b")},
		{name: "found with two edits", found: "2 - 3 is 5", edits: append(edit("a + b", "a - -b"), edit("a - b", "a + b")...)},
		{name: "found by a panic", found: "panic: oh", edits: edit("return a + b", `panic("oh")`)},
		{name: "found by the time limit", found: "timed out", edits: edit("return a + b", "select {}")},
		{name: "not in the file", edits: edit("a ^ b", "a + b"), want: errStale, says: "0 times"},
		{name: "twice in the file", edits: edit("(a, b int) int", "(b, a int) int"), want: errStale, says: "2 times"},
		{name: "overlapping", edits: append(edit("a + b", "a"), edit("a + b }", "b }")...), want: errStale, says: "0 times"},
		{name: "no such file", edits: []Edit{{"sum/gone.go", "a", "b"}}, want: errStale, says: "gone.go"},
		{name: "changes nothing", edits: edit("a + b", "b + a"), want: errNotFound},
		{name: "does not compile", found: "c", edits: edit("a + b", "a + c"), want: errBuild, says: "undefined: c"},
		{name: "found by another test", found: "2 - 3", edits: edit("a + b", "a * b"), want: errOther, says: "TestAdd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := suite(t, arithmetic)
			if c.name == "found by the time limit" {
				s.Timeout = time.Second
			}
			if c.found == "" {
				c.found = "."
			}
			err := s.finds(t.Context(), t.TempDir(), Fault{Name: c.name, Edits: c.edits, Found: c.found})
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
		})
	}
}

func TestAFaultWithoutEditsIsRefused(t *testing.T) {
	s := suite(t, "TestFails")
	for _, f := range []Fault{{Found: "x"}, {Edits: []Edit{{"sum/sum.go", "a + b", "a * b"}}}} {
		if err := s.finds(t.Context(), t.TempDir(), f); err == nil || !strings.Contains(err.Error(), "a fault needs") {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

func TestTheControlMustRunAndPass(t *testing.T) {
	for _, c := range []struct {
		run, tags string
		want      error
		says      string
	}{
		{run: "TestAdd|TestSkips"},
		{run: "TestTagged", tags: "extra"},
		{run: "TestTagged", want: errControl, says: "no test matches"},
		{run: "TestSkips", want: errControl, says: "all skip"},
		{run: "TestFails", want: errControl, says: "said by the environment"},
	} {
		t.Run(c.run+c.tags, func(t *testing.T) {
			s := suite(t, c.run)
			s.Tags, s.Env = c.tags, []string{"SAY=said by the environment"}
			err := s.passes(t.Context(), t.TempDir())
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
			}
		})
	}
}

// As callers use it, in the project itself.
func TestCheckRunsControlAndFaults(t *testing.T) {
	Suite{Package: "internal/errtext", Run: "."}.Check(t, Fault{
		Name:  "no colon",
		Edits: []Edit{{"internal/errtext/errtext.go", `": %v"`, `"; %v"`}},
		Found: `"head; full`,
	})
}

// Each fault is in one part; of the others the edits are tried, and nothing is compiled.
func TestPartsOfTheFaults(t *testing.T) {
	for i := range 20 {
		in, name := 0, fmt.Sprint("fault ", i)
		for part := range uint32(3) {
			if (share{part, 3}).has("am", name) {
				in++
			}
		}
		if in != 1 {
			t.Errorf("%s is in %d parts of 3", name, in)
		}
	}
	for _, text := range []string{"3/3", "1", "x/y", "-1/3", "0/0", "0/3x", "0/3/1"} {
		if s, err := shareOf(text); err == nil {
			t.Errorf("%q is taken for %+v", text, s)
		}
	}
	f := Fault{Name: "no colon", Edits: []Edit{{"internal/errtext/errtext.go", `": %v"`, `does not compile`}}, Found: "x"}
	for part := range uint32(2) {
		if !(share{part, 2}).has("internal/errtext", f.Name) {
			t.Setenv("IBCONDUIT_FAULTS", fmt.Sprintf("%d/2", part))
		}
	}
	Suite{Package: "internal/errtext", Run: "."}.Check(t, f)
}
