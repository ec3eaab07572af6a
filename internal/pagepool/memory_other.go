//go:build !linux

package pagepool

import (
	"errors"
	"fmt"
)

var errSystem = fmt.Errorf("memory that is given back when idle needs Linux: %w", errors.ErrUnsupported)

func mapMemory(int) ([]byte, error) { return nil, errSystem }
func unmap([]byte) error            { return errSystem }
func prepare([]byte)                {}
func populate([]byte)               {}
func discard([]byte, bool) error    { return errSystem }
