//go:build !linux

// Package peek reads the memory of another process of the same user.
package peek

import (
	"errors"
	"fmt"
)

// Read is for Linux.
func Read(pid int, address uint64, dst []byte) error {
	return fmt.Errorf("reading memory of process %d: %w", pid, errors.ErrUnsupported)
}
