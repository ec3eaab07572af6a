package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ibconduit/conduit/verbs"
)

func line(r Report, name string) (Check, bool) {
	i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Name == name })
	if i < 0 {
		return Check{}, false
	}
	return r.Checks[i], true
}

func run(t *testing.T, opts Options) (Report, string, int) {
	t.Helper()
	var b bytes.Buffer
	code, err := Run(t.Context(), &b, opts)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if opts.Format == "json" {
		d := json.NewDecoder(bytes.NewReader(b.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%v in:\n%s", err, b.String())
		}
	}
	return r, b.String(), code
}

func TestSharedMemoryReallyWorksWhereTheTestsRun(t *testing.T) {
	r, text, code := run(t, Options{Format: "json", Fabric: "shm"})
	for _, name := range []string{"shared-memory"} {
		if c, ok := line(r, name); !ok || c.Status != OK {
			t.Errorf("%s is %+v", name, c)
		}
	}
	if r.Schema != Schema || r.Code != code || r.Asked != "shm" {
		t.Errorf("code %d and:\n%s", code, text)
	}
}

func TestTheTextHasALinePerCheck(t *testing.T) {
	_, text, _ := run(t, Options{Fabric: "shm"})
	for _, name := range []string{"system", "shared-memory", "launcher", "cpu", "cgroup", "pressure"} {
		if strings.Count(text, "  "+name+" ") != 1 {
			t.Errorf("no line %s, or several, in:\n%s", name, text)
		}
	}
}

func TestAnEndedContextEndsTheExamination(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted by the user"))
	var b bytes.Buffer
	if code, err := Run(ctx, &b, Options{}); code != 1 || err != nil || !strings.Contains(b.String(), "interrupted by the user") {
		t.Errorf("code %d, %v:\n%s", code, err, b.String())
	}
}

func TestABuildWithoutVerbsSaysHowToBuildIt(t *testing.T) {
	f, _ := readFixture(t, "testdata/softroce-module.txtar")
	f.err = &verbs.Error{Op: "list devices", Errno: syscall.ENOSYS, Err: verbs.ErrNotSupported, Detail: "built without cgo", Remedy: "build with cgo"}
	r := examine(t.Context(), f.m, f.opts)
	if c, _ := line(r, "device"); c.Status != Warn || c.Remedy != "build with cgo" || !strings.Contains(c.Detail, "built without cgo") {
		t.Errorf("%+v", c)
	}
	if r.Code != 0 || r.Fabric != "shm" {
		t.Errorf("code %d, fabric %q", r.Code, r.Fabric)
	}
	f.opts.Fabric = "ibv"
	if r := examine(t.Context(), f.m, f.opts); r.Code != 1 {
		t.Errorf("code %d with fabric ibv", r.Code)
	}
}

func TestALibraryThatDoesNotLoadHasARemedy(t *testing.T) {
	f, _ := readFixture(t, "testdata/no-library.txtar")
	f.err = &verbs.Error{Op: "load libibverbs.so.1", Err: verbs.ErrNoLibrary, Detail: "cannot open shared object file", Remedy: "correct it"}
	r := examine(t.Context(), f.m, f.opts)
	if c, _ := line(r, "device"); c.Status != Warn || c.Detail != "libibverbs cannot be loaded: cannot open shared object file" || !strings.Contains(c.Remedy, "dnf install rdma-core libibverbs") {
		t.Errorf("%+v", c)
	}
	if r.Code != 0 || r.Fabric != "shm" {
		t.Errorf("code %d, fabric %q", r.Code, r.Fabric)
	}
	// Where a variable names the file, that is what is wrong.
	for file, want := range map[string]string{"/opt/none.so": verbs.EnvLibrary + " names /opt/none.so, which is not there", "mine.so": "mine.so, which " + verbs.EnvLibrary + " names"} {
		lookup := f.m.lookup
		f.m.lookup = func(name string) (string, bool) {
			if name == verbs.EnvLibrary {
				return file, true
			}
			return lookup(name)
		}
		r := examine(t.Context(), f.m, f.opts)
		if c, _ := line(r, "libibverbs"); c.Detail != want {
			t.Errorf("%s: %+v", file, c)
		}
		if c, _ := line(r, "device"); c.Remedy != "correct it" {
			t.Errorf("%s: %+v", file, c)
		}
		f.m.lookup = lookup
	}
}
