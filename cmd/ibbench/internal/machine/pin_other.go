//go:build !linux

package machine

import (
	"errors"
	"fmt"
)

// Pin fails: only Linux lets a process choose its processors.
func Pin(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	return fmt.Errorf("pin to processors %v: %w on this system", cpus, errors.ErrUnsupported)
}
