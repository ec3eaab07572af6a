//go:build !linux

package segment

import (
	"errors"
	"fmt"
)

var errSystem = fmt.Errorf("segment: segments need Linux: %w", errors.ErrUnsupported)

// Prepare fails: segments need Linux.
func Prepare(Config) (*Plan, error) { return nil, errSystem }

// Map fails: segments need Linux.
func (p *Plan) Map() (*Mapping, error) { return nil, errSystem }

// MapFD fails: segments need Linux.
func MapFD(int, int64) (*Mapping, error) { return nil, errSystem }

func (m *Mapping) unmap() error { return nil }
