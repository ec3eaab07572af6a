// Package handletest makes a test binary fail when its tests leave handles or goroutines behind.
package handletest

import (
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/ibconduit/conduit/internal/handle"
)

// VerifyTestMain runs the tests of a package and exits. The exit code is not zero when a test
// failed, when a handle is still open (its creation stack is printed) or when a goroutine is still
// running.
//
//	func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }
func VerifyTestMain(m *testing.M, opts ...goleak.Option) {
	handle.Track(true)
	os.Exit(verify(os.Stderr, m.Run(), opts...))
}

func verify(w io.Writer, code int, opts ...goleak.Option) int {
	if open := handle.Live(); len(open) > 0 {
		fmt.Fprintf(w, "handletest: %d handles were never closed:\n", len(open))
		for _, r := range open {
			fmt.Fprintf(w, "%v\n", r)
		}
		code = max(code, 1)
	}
	// After a failed test its goroutines say nothing new.
	if code == 0 {
		if err := goleak.Find(opts...); err != nil {
			fmt.Fprintf(w, "handletest: %v\n", err)
			code = 1
		}
	}
	return code
}
