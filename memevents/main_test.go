package memevents

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// helpers are what this binary does as another process: "test-binary helper NAME ARGS...".
var helpers = map[string]func(t testing.TB, args []string) error{}

// helper adds one. It fails by the error that it returns, or through t.
func helper(name string, run func(t testing.TB, args []string) error) bool {
	helpers[name] = run
	return true
}

// process is the testing.TB of a helper: what is fatal ends the process, which cleans nothing up.
type process struct{ testing.TB }

func (process) Helper()        {}
func (process) Cleanup(func()) {}

func (process) Fatal(args ...any) {
	fmt.Println("helper:", fmt.Sprint(args...))
	os.Exit(1)
}

func (p process) Fatalf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }

// cleanup runs after all tests.
var cleanup = func() {}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "helper" {
		if err := helpers[os.Args[2]](process{}, os.Args[3:]); err != nil {
			process{}.Fatal(err)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		cleanup()
		os.Exit(code)
	}))
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
