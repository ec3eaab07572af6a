//go:build !linux

package doctor

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

const (
	rlimitMemlock = iota
)

var errSystem = fmt.Errorf("the conduit needs Linux, this is %s: %w", runtime.GOOS, errors.ErrUnsupported)

func thisMachine() *machine {
	return &machine{
		Root: sysinfo.Host(), lookup: os.LookupEnv, uid: os.Geteuid(),
		kernel: "unknown", arch: runtime.GOARCH, cpus: runtime.NumCPU(),
		rlimit:  func(int) (uint64, uint64, error) { return 0, 0, errSystem },
		open:    func(string) error { return errSystem },
		share:   func() error { return errSystem },
		devices: askDevices, pin: tryPin, locked: lockedMemory,
	}
}
