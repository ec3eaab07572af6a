package memevents

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// helpers are what this binary does as another process: "test-binary helper NAME ARGS...".
var helpers = map[string]func(args []string) error{}

// cleanup runs after all tests.
var cleanup = func() {}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "helper" {
		if err := helpers[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Println("helper:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		cleanup()
		os.Exit(code)
	}))
}
