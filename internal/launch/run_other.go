//go:build !linux

package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

// Run starts ranks on linux only.
func Run(context.Context, Config) (code int, err error) {
	return 126, fmt.Errorf("launch: on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// GuardMain does nothing: there are no guards.
func GuardMain() {}

// Agent does nothing: there are no ranks.
func Agent(io.Reader, io.Writer) int { return 126 }

// Sent is for hosts, which there are not.
func Sent(string) bool { return true }

// Foreground is for ranks, which there are not.
func Foreground() bool { return false }

// writable does not know.
func writable(*os.File, time.Duration) bool { return false }
